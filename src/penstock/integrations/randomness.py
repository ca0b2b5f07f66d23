"""The random numbers of this process, put aside while a copy of a sampler is asked for its order.

Covers what samplers draw from: torch's own generator (that of the CPU; those of accelerators are
never touched), `random`, and numpy's, if the process has imported it.
Threading: these states are the process's. Whoever swaps them does it for milliseconds, in the
thread that draws from the sampler.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
