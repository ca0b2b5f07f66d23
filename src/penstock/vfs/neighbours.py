"""Notices who reads small files in the order of their listing, and says what comes next.

Several readers at once each make a run of their own: eight workers with a batch each are eight
runs in one folder. Nodes are numbered in the order of the listing, so a file that follows another
has the next number; nothing has to be looked up to see that.

A shuffled reader makes hardly any runs: of a hundred files one read in 250 ends one by chance, and
that costs four files. Of a thousand it is one in 250,000.

Threading: any thread. Nothing here waits or fetches.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_RUNS_REMEMBERED = 16
_FROM = 4  # files in a row
_MOST_AHEAD = 64


@dataclass(slots=True)
class _Run:
    length: int
    ahead: int  # up to which number it was announced


# announce(parent, after, up_to): children of `parent` numbered in (after, up_to] come next
Announce = Callable[[int, int, int], None]


class Neighbours:
    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, _Run] = OrderedDict()  # by the last file that was read

    def observe(self, parent: int, ino: int, *, is_stored: bool = False) -> None:
        """A small file is being read from its beginning. Whether it is stored does not matter: what
        was fetched ahead of a run is, and the run goes on there."""
        del is_stored
        with self._lock:
            run = self._following(ino)
            self._runs[ino] = run
            if len(self._runs) > _RUNS_REMEMBERED:
                self._runs.popitem(last=False)
            if run.length < _FROM:
                return
            # As far ahead as it has come already.
            window = min(_MOST_AHEAD, run.length)
            if run.ahead - ino > window // 2:
                return  # far enough for now
            after, run.ahead = max(run.ahead, ino), ino + window
        self._announce(parent, after, ino + window)

    def _following(self, ino: int) -> _Run:
        run = self._runs.pop(ino - 1, None)
        if run is None:
            return self._runs.pop(ino, None) or _Run(1, 0)
        run.length += 1
        return run
