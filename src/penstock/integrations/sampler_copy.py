"""Copies a sampler, so that its order can be drawn while the sampler itself stays untouched.

The copy shares nothing mutable with the original: lists, counters, generators and tensors are
copied. Data sets are replaced by stand-ins: the copy sees their length and their plain attributes;
calling or reading them is refused, because that could change them. What cannot be copied (locks,
open files, running generators) is refused too.

Copies are made with pickle rather than with `copy.deepcopy`, because with pickle one function sees
every object (and a list of a million numbers takes 0.14 s, not 0.19). Code is shared: functions,
classes and modules. So a sampler whose functions change global variables cannot be isolated.
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

# Iterators that can be copied without touching what they iterate over. Not `map` and `zip`: their
# copies share the iterators below them.
_PLAIN_ITERATORS: frozenset[type] = frozenset(
    (type(iter([])), type(iter(())), type(iter(range(0))), type(iter(range(2**70))))
)
_ATOMS = frozenset((int, float, str, bytes, bool, type(None), list, tuple, dict, set))
_OPEN_SEQUENCES = (list, tuple, range)


_COPIED = "numbers, lists, tensors and generators can be; locks, files and processes cannot"

Renew = Callable[[Any, int], object]


class UnpredictableOrder(PlanError):
    """The order of a sampler cannot be predicted; the message says why."""

    default_hint = "wrap the sampler in penstock.integrations.torch.PlannedSampler"


def is_plain_iterator(iterator: object) -> bool:
    return type(iterator) in _PLAIN_ITERATORS


def isolated_copy(
    value: Any, dataset: object = None, *, renew: Renew | None = None, share_data: bool = False
) -> Any:
    """Copy a sampler, or a tuple with a sampler in it; raise UnpredictableOrder if impossible.

    dataset     replaced by a stand-in wherever it occurs, as is every torch Dataset
    renew       makes the copy's replacement of the original's n-th random generator; without it,
                generators are copied with their states
    share_data  the copy gets the data sets themselves instead of stand-ins
    """
    memory = _BoundedMemory()
    copier = _Copier(memory, dataset, renew, _shared if share_data else _StandIn)
    try:
        with warnings.catch_warnings():
            # Python 3.12 and 3.13 warn that 3.14 will not copy what itertools makes.
            warnings.simplefilter("ignore", DeprecationWarning)
            copier.dump(value)
            memory.seek(0)
            return _Loader(memory, copier.kept).load()
    except Exception as error:  # whatever the sampler's own code raises
        first = cast("tuple[object, ...]", value)[0] if isinstance(value, tuple) else value
        raise UnpredictableOrder(
            f"{_kind_of(first).__name__} cannot be copied ({error})", hint=_COPIED
        ) from error


class _BoundedMemory(io.BytesIO):
    """Memory with a limit: a list of a million numbers takes 5 MB. Much more is not a sampler's
    state, and the training process may need the memory."""

    _MOST_BYTES = 256 * 1024 * 1024

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self._MOST_BYTES:
            raise UnpredictableOrder("it is too large")
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
        self._originals: list[object] = []  # kept alive, so that no id is used twice
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
            return self._keep(obj, _shared)
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            if isinstance(obj, torch.utils.data.Dataset):
                return self._keep(obj, self._show)
            if isinstance(obj, torch.nn.Module) or (
                isinstance(obj, torch.Tensor) and obj.device.type != "cpu"
            ):
                raise UnpredictableOrder(
                    "it holds parts of a model"
                )  # a GPU may have no room for a copy
            if kind is torch.Generator:
                return self._keep(obj, self._generator(_torch_generator))
        if self._renew is not None and _is_generator(obj):
            return self._keep(obj, self._generator(_shared))
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


class _Loader(pickle.Unpickler):
    def __init__(self, memory: io.BytesIO, kept: list[object]) -> None:
        super().__init__(memory)
        self._kept = kept

    def persistent_load(self, pid: Any) -> object:
        return self._kept[pid]


class _StandIn:
    """What the copy of a sampler may see of a data set."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_dataset_itself"] = dataset

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """For isinstance."""
        return _kind_of(self.__dict__["_dataset_itself"])

    def __len__(self) -> int:
        return len(self.__dict__["_dataset_itself"])

    def __getattr__(self, name: str) -> Any:
        dataset = self.__dict__["_dataset_itself"]
        value = getattr(dataset, name)
        if callable(value):
            raise UnpredictableOrder(f"its sampler calls {name}() of the data set")
        # Kept once copied: a sampler that shuffles a list of its data set must find it shuffled.
        self.__dict__[name] = copied = isolated_copy(value, dataset)
        return copied

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value  # only in the copy

    def __getitem__(self, index: Any) -> Any:
        dataset = self.__dict__["_dataset_itself"]
        if type(dataset) not in _OPEN_SEQUENCES:
            raise UnpredictableOrder("its sampler reads the data set")
        return isolated_copy(dataset[index])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def _kind_of(obj: object) -> type:
    return type(obj)


def _shared(obj: Any) -> object:
    return obj


def _torch_generator(original: Any) -> object:
    twin = type(original)(device=original.device)
    twin.set_state(original.get_state())
    return twin


def _is_generator(obj: object) -> bool:
    """Whether it is a random number generator of Python or numpy."""
    if isinstance(obj, random.Random):
        return True
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.random.Generator | numpy.random.RandomState)
