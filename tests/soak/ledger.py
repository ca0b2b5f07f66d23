"""What is true of each file right now, shared between the soak and its readers in one small file.

For every file: `latest`, the number of the state that the bucket got last (raised before the bucket
changes); and per mount `floor`, the state it was in when the last refresh of that mount began
(raised after the refresh is done). A read that begins now must show a state from `floor` to what
`latest` is when it ends. One writer, many readers; each number is one aligned word.
"""

import mmap
from pathlib import Path

from tests.soak.contents import NAMES, size_of

_WORDS = 1 + 3 * len(NAMES)  # stop; latest; floors of two mounts


class Ledger:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(4 * _WORDS))
        with open(path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 4 * _WORDS)).cast("I")

    @property
    def stopping(self) -> bool:
        return bool(self._words[0])

    def stop(self) -> None:
        self._words[0] = 1

    def latest(self, file: int) -> int:
        return self._words[1 + file]

    def next_state(self, file: int) -> int:
        self._words[1 + file] += 1
        return self._words[1 + file]

    def floor(self, mount: int, file: int) -> int:
        return self._words[1 + (mount + 1) * len(NAMES) + file]

    def raise_floor(self, mount: int, states: list[int]) -> None:
        first = 1 + (mount + 1) * len(NAMES)
        for file, state in enumerate(states):
            self._words[first + file] = state

    def may_be_absent(self, floor: int, file: int) -> bool:
        states = range(floor, self.latest(file) + 1)
        return any(size_of(NAMES[file], state) is None for state in states)
