"""What the iterator of a sampler will hand out, told before it is asked, from a copy.

The copy draws its random numbers where the original will draw them: from copies of its own
generators, and from the process's states as they are at this moment, which are put back. So the
script's numbers are what they would have been.

Threading: none of its own; see `randomness`.
"""

import copy
import hashlib
import inspect
import operator
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from penstock.integrations.sampler_copy import NoOrder, copy_apart, is_plain_iterator

# The random numbers of this process, put aside while a copy of a sampler is asked for its order.
#
# Covers what samplers draw from: torch's own generator (that of the CPU; those of accelerators
# are never touched), `random`, and numpy's, if the process has imported it. Threading: these
# states are the process's. Whoever swaps them does it for milliseconds, in the thread that draws
# from the sampler.


class RandomStates:
    """All of them at one moment. Equal if nobody has drawn in between."""

    def __init__(self) -> None:
        self._parts = {name: read() for name, (read, _) in _sources().items()}

    def put_back(self) -> None:
        # numpy may have been imported in between: what it has drawn since is left as it is
        sources = _sources()
        for name, state in self._parts.items():
            sources[name][1](state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomStates):
            return NotImplemented
        shared = self._parts.keys() & other._parts.keys()
        return all(_same(self._parts[name], other._parts[name]) for name in shared)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@contextmanager
def set_aside() -> Iterator[None]:
    """What is drawn inside is drawn from the same states; afterwards they are as they were."""
    before = RandomStates()
    try:
        yield
    finally:
        before.put_back()


def seed_all(number: int) -> None:
    """Inside `set_aside`."""
    random.seed(number)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(number)  # torch.manual_seed would seed GPUs too
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)


def derive(*numbers: int) -> int:
    """A seed from several numbers: equal for equal ones, on every machine and Python."""
    text = "/".join(str(number) for number in numbers)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _sources() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    sources: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "random": (random.getstate, random.setstate)
    }
    if (torch := sys.modules.get("torch")) is not None:
        sources["torch"] = (torch.get_rng_state, torch.set_rng_state)
    if (numpy := sys.modules.get("numpy")) is not None:
        sources["numpy"] = (numpy.random.get_state, numpy.random.set_state)
    return sources


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):  # numpy's holds an array
        return all(_same(a, b) for a, b in zip(one, other, strict=True))  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


class Forecast:
    """The order of one epoch, and of the next if it does not depend on what comes in between."""

    def __init__(
        self, sampler: Any, iterator: Any, dataset: object = None, generator: Any = None
    ) -> None:
        """Of `iterator`, made by `sampler` and not drawn from yet; None: of the next that it makes.
        `generator` is the loader's, which may be the sampler's too."""
        self.ended = False
        self.uses_shared_numbers = False
        self._states = RandomStates()
        self._sampler: Any = None
        self._generator: Any = None
        if is_plain_iterator(iterator):
            self._iterator: Iterator[Any] | None = copy.copy(iterator)
            self._remember(sampler, dataset, generator)
            return
        if iterator is not None and not inspect.isgenerator(iterator):
            try:
                copied = copy_apart((iterator, sampler, generator), dataset)
            except NoOrder:
                pass  # there is a generator somewhere in it
            else:
                self._iterator, self._sampler, self._generator = copied
                return
        # A generator has done nothing before it is first drawn from: its sampler is as it was.
        self._sampler, self._generator = copy_apart((sampler, generator), dataset)
        self._iterator = None

    def _remember(self, sampler: Any, dataset: object, generator: Any) -> None:
        try:
            self._sampler, self._generator = copy_apart((sampler, generator), dataset)
        except NoOrder:
            self.uses_shared_numbers = True  # this epoch is known, the next one will not be

    def draw(self, most: int) -> "array[int]":
        """The next `most` indices or a few more, fewer at the end. Raises NoOrder."""
        order = array("q")
        with set_aside():
            self._states.put_back()
            before = RandomStates()
            try:
                if self._iterator is None:
                    self._iterator = iter(self._sampler)
                while len(order) < most:
                    add_indices(order, next(self._iterator))
            except StopIteration:
                self.ended = True
            except NoOrder:
                raise
            except Exception as error:
                # Raised by the sampler's own code. The script will meet it at the same place; until
                # there the order is known.
                self.ended = self.uses_shared_numbers = True
                if not order:
                    raise NoOrder(f"its sampler fails ({error!r})") from error
            finally:
                self._states = RandomStates()
                self.uses_shared_numbers |= self._states != before
        return order

    def go_on(self, *, epoch: int | None, seeds_workers: bool) -> bool:
        """To the next epoch; False if nobody can tell its order yet.

        epoch          what set_epoch will be called with, if the sampler has it
        seeds_workers  the loader draws a number from its generator when the epoch begins
        """
        if not self.ended or self.uses_shared_numbers or self._sampler is None:
            return False
        target = counts_epochs(self._sampler)
        if target is not None and epoch is not None:
            target.set_epoch(epoch)
        if seeds_workers and self._generator is not None:
            import torch

            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._iterator, self.ended = None, False
        return True


def add_indices(order: "array[int]", drawn: Any) -> None:
    """What a sampler has handed out: an index, or a batch of them in whatever form. Raises NoOrder
    for what is neither: pairs in a batch may be an index and a size."""
    if isinstance(drawn, list):  # nearly always, and fast
        try:
            order.fromlist(cast("list[int]", drawn))
        except TypeError:
            pass  # nothing of it was taken
        else:
            return
    one = _as_index(drawn)
    if one is not None:
        order.append(one)
        return
    if isinstance(drawn, str | bytes) or not hasattr(cast(Any, drawn), "__iter__"):
        raise NoOrder(f"its sampler hands out {cast(Any, drawn).__class__.__name__}, not numbers")
    for part in cast(Any, drawn):
        if (one := _as_index(part)) is None:
            raise NoOrder(f"its sampler hands out batches of {part.__class__.__name__}")
        order.append(one)


def _as_index(drawn: Any) -> int | None:
    try:
        return operator.index(drawn)
    except (TypeError, RuntimeError, ValueError):  # the last two: tensors of several numbers
        return None


def counts_epochs(sampler: Any) -> Any:
    """The sampler in this chain of samplers that has an epoch to set, as DistributedSampler has."""
    for _ in range(8):  # one that wraps itself must not hold us up
        if sampler is None:
            return None
        if callable(getattr(sampler, "set_epoch", None)):
            return sampler
        sampler = getattr(sampler, "sampler", getattr(sampler, "batch_sampler", None))
    return None
