"""How long the loops of a job waited for their batches: one small file for each process that has a
DataLoader, in the job's folder.

The training process maps its file and writes to it after each batch (0.6 us); whoever asks reads
the files, also after the job has ended. Each value is one aligned machine word, so a reader may see
one batch more in one value than in another, but never half a value. Imports nothing of ours: it is
loaded in the user's training process.
"""

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PENSTOCK_JOB_WAITS"  # tells the processes of a job where the folder is

_SUFFIX = ".waits"
_MAGIC = 0x31_5457_4B4E_5350  # `PSNKWT1`
_WORDS = ("magic", "batches", "waited_ns", "began_ns", "ended_ns")
_SIZE = 8 * len(_WORDS)
_MAGIC_AT, _BATCHES, _WAITED, _BEGAN, _ENDED = range(len(_WORDS))


class WaitRecord:
    """The file of this process. Raises OSError if it cannot be made."""

    def __init__(self, folder: Path) -> None:
        # Process ids of a job come again, in its own namespace and with each attempt.
        descriptor, name = tempfile.mkstemp(_SUFFIX, f"{os.getpid()}-", folder)
        try:
            # Not sparse: a full disk must fail here, not by SIGBUS at the first batch.
            os.posix_fallocate(descriptor, 0, _SIZE)
            self._words = memoryview(mmap.mmap(descriptor, _SIZE)).cast("Q")
        except BaseException:
            os.unlink(name)
            raise
        finally:
            os.close(descriptor)
        self._words[_MAGIC_AT] = _MAGIC

    def add(self, asked_ns: int, got_ns: int) -> None:
        """Count one batch, by the monotonic clock: when it was asked for, and when it came."""
        words = self._words
        if not words[_BEGAN]:
            words[_BEGAN] = asked_ns
        words[_WAITED] += got_ns - asked_ns
        words[_ENDED] = got_ns
        words[_BATCHES] += 1


@dataclass(frozen=True, slots=True)
class LoaderWaits:
    """The sum over the processes of a job that have a DataLoader."""

    processes: int
    batches: int
    waited_s: float
    elapsed_s: float  # from the first batch that each asked for until the last that it got

    @property
    def share(self) -> float:
        """The part of the time of these loops in which they waited."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0


def read_waits(folder: Path) -> LoaderWaits | None:
    """Return what the processes of a job have recorded; None if none has got a batch."""
    found: list[tuple[int, ...]] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # the job was deleted
        if len(content) == _SIZE:
            words = struct.unpack(f"={len(_WORDS)}Q", content)
            if words[_MAGIC_AT] == _MAGIC and words[_BATCHES]:
                found.append(words)
    if not found:
        return None
    return LoaderWaits(
        len(found),
        sum(words[_BATCHES] for words in found),
        sum(words[_WAITED] for words in found) / 1e9,
        sum(words[_ENDED] - words[_BEGAN] for words in found) / 1e9,
    )
