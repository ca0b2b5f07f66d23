"""A copy of a sampler, to be asked for its order while the sampler itself stays untouched.

The copy shares nothing that can change with what it was made from: lists, counters, generators and
tensors are copied. Data sets are not copied but stood in for: the copy can see their length and
their plain attributes, and calling or reading them is refused, because that could change them.
What cannot be copied (locks, open files, running generators) is refused too.

Copies are made with pickle rather than with `copy.deepcopy`, because there one function sees every
object (and a list of a million numbers takes 0.14 s, not 0.19). Code is shared: functions, classes
and modules. So a sampler whose functions change global variables is one that we cannot keep apart.
Threading: none of its own.
"""

import io
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

from penstock.errors import PlanError

# Iterators that can be copied as they stand without touching what they iterate over. A copied
# `map` or `zip` would not do: it shares the iterators below it.
_PLAIN_ITERATORS: frozenset[type] = frozenset(
    (type(iter([])), type(iter(())), type(iter(range(0))), type(iter(range(2**70))))
)
_ATOMS = frozenset((int, float, str, bytes, bool, type(None), list, tuple, dict, set))
_OPEN_SEQUENCES = (list, tuple, range)


_COPIED = "numbers, lists, tensors and generators can be; locks, files and processes cannot"

Renew = Callable[[Any, int], object]


class NoOrder(PlanError):
    """Why nobody can tell the order of a sampler in advance."""

    default_hint = "wrapped in penstock.integrations.torch.PlannedSampler it can be planned"


def is_plain_iterator(iterator: object) -> bool:
    return type(iterator) in _PLAIN_ITERATORS


def copy_apart(
    value: Any, dataset: object = None, *, renew: Renew | None = None, share_data: bool = False
) -> Any:
    """A copy of a sampler, or of a tuple with a sampler in it. Raises NoOrder.

    dataset     stood in for wherever it occurs, besides all others that are torch's
    renew       makes the random generator that the copy has instead of the n-th of the original;
                otherwise they are copied with their states
    share_data  the copy has the data sets themselves
    """
    memory = _Bounded()
    copier = _Copier(memory, dataset, renew, _the_same if share_data else _StandIn)
    try:
        with warnings.catch_warnings():
            # Python 3.12 and 3.13 warn that 3.14 will not copy what itertools makes.
            warnings.simplefilter("ignore", DeprecationWarning)
            copier.dump(value)
            memory.seek(0)
            return _Uncopier(memory, copier.kept).load()
    except Exception as error:  # whatever the sampler's own code raises
        first = cast("tuple[object, ...]", value)[0] if isinstance(value, tuple) else value
        raise NoOrder(
            f"{_kind_of(first).__name__} cannot be copied ({error})", hint=_COPIED
        ) from error


class _Bounded(io.BytesIO):
    """A list of a million numbers takes 5 MB. What is much more is no sampler's, and the training
    process may need that memory."""

    _MOST_BYTES = 256 * 1024 * 1024

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self._MOST_BYTES:
            raise NoOrder("it is too large")
        return super().write(data)


class _Copier(pickle.Pickler):
    def __init__(
        self,
        memory: io.BytesIO,
        dataset: object,
        renew: Renew | None,
        show: Callable[[Any], object],
    ) -> None:
        super().__init__(memory, pickle.HIGHEST_PROTOCOL)
        self._show = show
        self._dataset = dataset
        self._renew = renew
        self._numbers: dict[int, int] = {}
        self._originals: list[object] = []  # so that no id is used twice
        self.kept: list[object] = []

    def persistent_id(self, obj: Any) -> int | None:
        if obj is None:
            return None
        if obj is self._dataset:
            return self._keep(obj, self._show)
        kind = _kind_of(obj)
        if kind in _ATOMS:
            return None
        if isinstance(obj, type | FunctionType | ModuleType):
            return self._keep(obj, _the_same)
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            if isinstance(obj, torch.utils.data.Dataset):
                return self._keep(obj, self._show)
            if isinstance(obj, torch.nn.Module) or (
                isinstance(obj, torch.Tensor) and obj.device.type != "cpu"
            ):
                raise NoOrder("it holds what a model holds")  # and a GPU may have no room for two
            if kind is torch.Generator:
                return self._keep(obj, self._generator(_torch_generator))
        if self._renew is not None and _is_generator(obj):
            return self._keep(obj, self._generator(_the_same))
        return None

    def _keep(self, obj: Any, make: Callable[[Any], object]) -> int:
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.kept)
            self._originals.append(obj)
            self.kept.append(make(obj))
        return number

    def _generator(self, otherwise: Callable[[Any], object]) -> Callable[[Any], object]:
        renew = self._renew
        if renew is None:
            return otherwise
        return lambda obj: renew(obj, len(self.kept))


class _Uncopier(pickle.Unpickler):
    def __init__(self, memory: io.BytesIO, kept: list[object]) -> None:
        super().__init__(memory)
        self._kept = kept

    def persistent_load(self, pid: Any) -> object:
        return self._kept[pid]


class _StandIn:
    """A data set as far as the copy of a sampler may see it."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_dataset_itself"] = dataset

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What isinstance asks."""
        return _kind_of(self.__dict__["_dataset_itself"])

    def __len__(self) -> int:
        return len(self.__dict__["_dataset_itself"])

    def __getattr__(self, name: str) -> Any:
        dataset = self.__dict__["_dataset_itself"]
        value = getattr(dataset, name)
        if callable(value):
            raise NoOrder(f"its sampler calls {name}() of the data set")
        # Once copied it stays: a sampler that shuffles a list of its data set finds it shuffled.
        self.__dict__[name] = copied = copy_apart(value, dataset)
        return copied

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value  # the copy's alone

    def __getitem__(self, index: Any) -> Any:
        dataset = self.__dict__["_dataset_itself"]
        if type(dataset) not in _OPEN_SEQUENCES:
            raise NoOrder("its sampler reads the data set")
        return copy_apart(dataset[index])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def _kind_of(obj: object) -> type:
    return type(obj)


def _the_same(obj: Any) -> object:
    return obj


def _torch_generator(original: Any) -> object:
    twin = type(original)(device=original.device)
    twin.set_state(original.get_state())
    return twin


def _is_generator(obj: object) -> bool:
    """Whether it is one of Python's or numpy's generators of random numbers."""
    if isinstance(obj, random.Random):
        return True
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.random.Generator | numpy.random.RandomState)
