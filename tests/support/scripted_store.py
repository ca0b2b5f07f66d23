"""A store whose answers the test writes down, and a clock that only sleeping moves."""

from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import PenstockError
from penstock.store import Level, ObjectInfo, Pending
from penstock.store.retry import Timing


class Clock:
    """Clock that passes only by sleeping. Draws the longest pause, unless told otherwise."""

    def __init__(self, draw: Callable[[], float] = lambda: 1.0) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.time = Timing(lambda: self.now_s, self.sleep, draw)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


class Scripted:
    """A store that answers with what it is given: bytes, or an error to raise."""

    identity = "s3://scripted"

    def __init__(self, *answers: bytes | PenstockError) -> None:
        self.answers = list(answers)
        self.asked = 0

    def get(
        self, key: str, version: str, start: int, length: int, size_bytes: int, *progress: Any
    ) -> bytes:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def list_level(self, prefix: str) -> Level | None:
        self.get(prefix, "", 0, 0, 0)
        return Level([], [prefix])

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        raise NotImplementedError

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        return None

    def why_unreadable(self, key: str) -> str | None:
        return None
