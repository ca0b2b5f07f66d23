"""Predicts what the iterator of a sampler will hand out, by drawing from a copy of it.

The copy draws its random numbers where the original will draw them: from copies of its own
generators, and from the random states of the process as they are now, which are restored. So the
script draws the same numbers as without a forecast.

Threading: the random states belong to the process. They are swapped for milliseconds, in the
thread that draws from the sampler.
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

from penstock.integrations.sampler_copy import UnpredictableOrder, is_plain_iterator, isolated_copy


class RandomStates:
    """The random states of this process at one moment; equal if nothing was drawn in between.

    Covers what samplers draw from: torch's CPU generator (those of accelerators are never touched),
    `random`, and numpy's global generator if the process has imported numpy.
    """

    def __init__(self) -> None:
        self._parts = {name: read() for name, (read, _) in _sources().items()}

    def restore(self) -> None:
        # numpy may have been imported in between: its state then stays as it is
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
def preserve_random_states() -> Iterator[None]:
    """Restore the random states at the end of the block."""
    before = RandomStates()
    try:
        yield
    finally:
        before.restore()


def seed_all(number: int) -> None:
    """Seed all random states; only inside `preserve_random_states`."""
    random.seed(number)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(number)  # torch.manual_seed would seed GPUs too
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)


def derive_seed(*numbers: int) -> int:
    """Derive a seed from several numbers; the same on every machine and Python."""
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
    """The order of one epoch, and of the next one if nothing in between decides it."""

    def __init__(
        self, sampler: Any, iterator: Any, dataset: object = None, generator: Any = None
    ) -> None:
        """Copy `iterator`, which `sampler` made and nothing was drawn from yet; with None, copy
        the sampler, and predict the next iterator that it makes. `generator` is that of the
        loader, which may be the sampler's too."""
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
                copied = isolated_copy((iterator, sampler, generator), dataset)
            except UnpredictableOrder:
                pass  # it contains a Python generator
            else:
                self._iterator, self._sampler, self._generator = copied
                return
        # A Python generator does nothing before its first item: a copy of its sampler is as good.
        self._sampler, self._generator = isolated_copy((sampler, generator), dataset)
        self._iterator = None

    def _remember(self, sampler: Any, dataset: object, generator: Any) -> None:
        try:
            self._sampler, self._generator = isolated_copy((sampler, generator), dataset)
        except UnpredictableOrder:
            self.uses_shared_numbers = True  # this epoch can be predicted, the next one cannot

    def draw(self, most: int) -> "array[int]":
        """Return the next `most` indices or a few more, fewer at the end of the epoch."""
        order = array("q")
        with preserve_random_states():
            self._states.restore()
            before = RandomStates()
            try:
                if self._iterator is None:
                    self._iterator = iter(self._sampler)
                while len(order) < most:
                    add_indices(order, next(self._iterator))
            except StopIteration:
                self.ended = True
            except UnpredictableOrder:
                raise
            except Exception as error:
                # Raised by the sampler's own code: the script will get the same error at the same
                # place, and the order is known up to it.
                self.ended = self.uses_shared_numbers = True
                if not order:
                    raise UnpredictableOrder(f"its sampler fails ({error!r})") from error
            finally:
                self._states = RandomStates()
                self.uses_shared_numbers |= self._states != before
        return order

    def advance(self, *, epoch: int | None, seeds_workers: bool) -> bool:
        """Continue with the next epoch; return False if its order cannot be predicted yet.

        epoch          the argument of set_epoch for it, if the sampler has that method
        seeds_workers  whether the loader draws a seed from its generator when the epoch begins
        """
        if not self.ended or self.uses_shared_numbers or self._sampler is None:
            return False
        target = sampler_with_epochs(self._sampler)
        if target is not None and epoch is not None:
            target.set_epoch(epoch)
        if seeds_workers and self._generator is not None:
            import torch

            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._iterator, self.ended = None, False
        return True


def add_indices(order: "array[int]", drawn: Any) -> None:
    """Append what a sampler has handed out: an index, or a batch of indices in any form.

    Raise UnpredictableOrder for anything else: pairs in a batch may be an index and a size."""
    if isinstance(drawn, list):  # the usual case, and fast
        try:
            order.fromlist(cast("list[int]", drawn))
        except TypeError:
            pass  # nothing was appended
        else:
            return
    one = _as_index(drawn)
    if one is not None:
        order.append(one)
        return
    if isinstance(drawn, str | bytes) or not hasattr(cast(Any, drawn), "__iter__"):
        raise UnpredictableOrder(
            f"its sampler hands out {cast(Any, drawn).__class__.__name__}, not numbers"
        )
    for part in cast(Any, drawn):
        if (one := _as_index(part)) is None:
            raise UnpredictableOrder(f"its sampler hands out batches of {part.__class__.__name__}")
        order.append(one)


def _as_index(drawn: Any) -> int | None:
    try:
        return operator.index(drawn)
    except (TypeError, RuntimeError, ValueError):  # the last two: tensors of several numbers
        return None


def sampler_with_epochs(sampler: Any) -> Any:
    """Return the sampler in this chain that has `set_epoch`, as DistributedSampler has."""
    for _ in range(8):  # bounded: a sampler may wrap itself
        if sampler is None:
            return None
        if callable(getattr(sampler, "set_epoch", None)):
            return sampler
        sampler = getattr(sampler, "sampler", getattr(sampler, "batch_sampler", None))
    return None
