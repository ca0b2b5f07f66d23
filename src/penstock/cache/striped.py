"""The tier on this machine's disks: several directories, and an object's digest picks its own.

One that fails takes only its own share out: what it held is missed, and read from the next tier
or the store. May be used from any thread.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from penstock.cache.guarded import GuardedDirectory
from penstock.cache.identity import Block, CachedObject, object_path


class StripedTier:
    def __init__(self, name: str, directories: list[GuardedDirectory]) -> None:
        self.name = name
        self.directories = directories

    def _of(self, digest: bytes) -> GuardedDirectory:
        return self.directories[self.share_of(digest)]

    def _shares(self, digests: list[bytes]) -> Iterator[tuple[GuardedDirectory, list[bytes]]]:
        for directory in self.directories:
            if some := [one for one in digests if self._of(one) is directory]:
                yield directory, some

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        directories = self.directories
        return directories[block.digest[0] % len(directories)].read(block, start, stop)

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        return self._of(obj.digest).write(obj, block_bytes, block, data)

    def has(self, block: Block) -> bool:
        return self._of(block.digest).has(block)

    def has_room(self, block: Block) -> bool:
        return self._of(block.digest).has_room(block.length)

    def cached_bytes(self, digest: bytes) -> int:
        return self._of(digest).cached_bytes(digest)

    def cached_sizes(self, digests: list[bytes]) -> dict[bytes, int]:
        """How much is here of each, without those of which nothing is: the truth, looked up."""
        found: dict[bytes, int] = {}
        for directory, some in self._shares(digests):
            found.update(directory.cached_sizes(some))
        return found

    def mark_used(self, digests: list[bytes]) -> None:
        """They are wanted: for a policy that looks at that, as good as read just now."""
        for directory, some in self._shares(digests):
            directory.mark_used(some)

    def share_of(self, digest: bytes) -> int:
        """Which of the shares, each with room of its own, would hold it."""
        return digest[0] % len(self.directories)

    def free_beside(self, wanted_bytes: Callable[[int], int]) -> list[int]:
        """How many bytes more each share may take in without driving out each other, or so many
        bytes that are in that share already and were used last."""
        return [
            directory.free_beside(wanted_bytes(share))
            for share, directory in enumerate(self.directories)
        ]

    def verify(self, digest: bytes) -> list[int]:
        """Reads back what is here; drops the blocks that do not match, and returns them."""
        return self._of(digest).verify(digest)

    def remove(self, digests: list[bytes]) -> int:
        """Lets go of them; returns how many bytes that were."""
        return sum(directory.remove(some) for directory, some in self._shares(digests))

    def complete_file(self, obj: CachedObject) -> Path | None:
        """A plain file with all of the object, every byte verified in this process's life."""
        return self._of(obj.digest).complete_file(obj)

    def file_of(self, digest: bytes) -> str:
        """Where its bytes lie if they do, unverified."""
        return f"{self._of(digest).path}/{object_path(digest)}"

    def mark_outdated(self, digests: list[bytes]) -> None:
        """The bucket does not have these any more."""
        for directory, some in self._shares(digests):
            directory.mark_outdated(some)

    def source_bytes(self, source: str) -> int:
        return sum(directory.source_bytes(source) for directory in self.directories)

    def indexed_bytes(self, source: str) -> int:
        """The same without waiting for what is about to be noted."""
        return sum(directory.indexed_bytes(source) for directory in self.directories)

    @property
    def quota_bytes(self) -> int:
        return sum(directory.quota_bytes for directory in self.directories)

    def flush(self) -> None:
        """Notes on disk what is stored."""
        for directory in self.directories:
            directory.flush()

    def check_for_hangs(self) -> None:
        """Takes out the directories whose disk does not answer."""
        for directory in self.directories:
            directory.check_for_hang()

    def describe(self) -> dict[str, Any]:
        """For `penstock stats`. A tier of which any directory is out is out; `directories` says
        which."""
        found = [directory.status() for directory in self.directories]
        out = [one for one in found if one.state == "out"]
        return {
            "name": self.name,
            "paths": [str(one.path) for one in found],
            "quota_bytes": sum(one.quota_bytes for one in found),
            "used_bytes": sum(one.used_bytes for one in found),
            "state": "out" if out else "ok",
            "error": out[0].error if out else None,
            "out_s": max((one.out_s or 0.0 for one in out), default=None),
            "directories": [
                {"path": str(one.path), "state": one.state, "error": one.error, "out_s": one.out_s}
                for one in found
            ],
        }

    def close(self) -> None:
        for directory in self.directories:
            directory.close()
