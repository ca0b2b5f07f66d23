"""The store of a source that is not mounted any more, for readers that still have its files open.

The cache is read under its name, and nothing is fetched.
"""

from collections.abc import Iterator

from typing_extensions import Buffer

from penstock.errors import ObjectNotFound
from penstock.store import Chunks, Level, ObjectInfo, Pending, Progress


class RemovedStore:
    def __init__(self, identity: str) -> None:
        self.identity = identity

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        return iter(())

    def list_level(self, prefix: str) -> Level | None:
        return None

    def get(
        self,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        raise ObjectNotFound(f"{self.identity}/{key}: its source is not mounted any more")

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        return None

    def why_unreadable(self, key: str) -> str | None:
        return None

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        raise ObjectNotFound(f"{self.identity}/{key}: its source is not mounted any more")

    def delete(self, key: str) -> None:
        raise ObjectNotFound(f"{self.identity}/{key}: its source is not mounted any more")

    def clear_partial(self, key: str) -> None:
        return
