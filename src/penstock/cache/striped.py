"""A tier on this machine's disks: several directories; an object's digest selects its own.

A directory that fails takes only its own share out of service: its objects are read from the next
tier or the store. Threading: any thread.
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

    def _by_directory(self, digests: list[bytes]) -> Iterator[tuple[GuardedDirectory, list[bytes]]]:
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
        """Return how many bytes of each object are stored, leaving out objects with none. Each file
        is checked."""
        found: dict[bytes, int] = {}
        for directory, some in self._by_directory(digests):
            found.update(directory.cached_sizes(some))
        return found

    def mark_used(self, digests: list[bytes]) -> None:
        """Mark the objects as used now, for a policy that tracks use."""
        for directory, some in self._by_directory(digests):
            directory.mark_used(some)

    def share_of(self, digest: bytes) -> int:
        """Return which share, each with its own room, would hold the object."""
        return digest[0] % len(self.directories)

    def free_beside(self, wanted_bytes: Callable[[int], int]) -> list[int]:
        """Return how many more bytes each share can store without evicting each other, or the
        `wanted_bytes` of that share that are stored already and were used last."""
        return [
            directory.free_beside(wanted_bytes(share))
            for share, directory in enumerate(self.directories)
        ]

    def verify(self, digest: bytes) -> list[int]:
        """Read back the object; drop the blocks that do not match, and return their numbers."""
        return self._of(digest).verify(digest)

    def remove(self, digests: list[bytes]) -> int:
        """Remove the objects; return how many bytes they had."""
        return sum(directory.remove(some) for directory, some in self._by_directory(digests))

    def complete_file(self, obj: CachedObject) -> Path | None:
        """Return a file with the whole object, every byte of which this process has verified."""
        return self._of(obj.digest).complete_file(obj)

    def file_of(self, digest: bytes) -> str:
        """Return the path where its bytes are if they are stored, unverified."""
        return f"{self._of(digest).path}/{object_path(digest)}"

    def mark_outdated(self, digests: list[bytes]) -> None:
        """Mark objects that are no longer in the bucket."""
        for directory, some in self._by_directory(digests):
            directory.mark_outdated(some)

    def source_bytes(self, source: str) -> int:
        return sum(directory.source_bytes(source) for directory in self.directories)

    def indexed_bytes(self, source: str) -> int:
        """Like `source_bytes`, without waiting for pending index rows."""
        return sum(directory.indexed_bytes(source) for directory in self.directories)

    @property
    def quota_bytes(self) -> int:
        return sum(directory.quota_bytes for directory in self.directories)

    def flush(self) -> None:
        """Write all pending index rows."""
        for directory in self.directories:
            directory.flush()

    def check_for_hangs(self) -> None:
        """Take directories out of service whose disk does not answer."""
        for directory in self.directories:
            directory.check_for_hang()

    def describe(self) -> dict[str, Any]:
        """Describe the tier for `penstock stats`. It is out if any of its directories is;
        `directories` shows which."""
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
