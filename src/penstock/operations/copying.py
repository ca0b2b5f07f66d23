"""One object from one store to another, in bounded memory, and compared on both sides.

The bytes pass by once: their MD5 is compared with the source's ETag before the last of them is
handed over, so that nothing wrong is ever whole in the target, and with the target's ETag after.
An ETag that looks like an MD5 and is none is found out: chance does not damage an object twice in
the same way.

Threading: any thread; one copy is one thread's, and at most so many large ones are on their way.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.catalog.staging import MOST_FILES
from penstock.errors import SourceError, StoreError, UsageError
from penstock.metrics import Counters
from penstock.settings import Part
from penstock.store import ObjectInfo, Store
from penstock.store.etags import PART_BYTES, Digest, is_md5
from penstock.store.retry import open_reliable_store
from penstock.warm.pace import RateLimit

# Where a migration copies from or to: one store, or a data set that is made of several.
#
# A location has paths of its own, relative to where it begins; which store holds what lies there,
# and under which key, is found here. As on the mount, of two parts the one deeper down wins.
#
# Threading: any thread once it is open.


class Found(NamedTuple):
    """An object, and where it lies in its location."""

    path: str
    store: Store
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class _Root:
    """One store of a location: what lies at `path` of the location lies below `prefix` in it."""

    path: str
    prefix: str
    store: Store
    part: Part

    def key(self, path: str) -> str:
        return _joined(self.prefix, _rest(path, self.path))

    def path_of(self, key: str) -> str:
        return _joined(self.path, _rest(key, self.prefix))

    def is_plain_file(self) -> bool:
        """A folder of this machine can tell before it is listed."""
        source = self.part.source
        return source.scheme == "file" and Path(source.prefix, self.prefix).is_file()

    @property
    def place(self) -> tuple[str, str, str | None, str]:
        """What tells this place from others: store, bucket, endpoint, prefix."""
        source = self.part.source
        prefix = _joined(source.prefix.strip("/"), self.prefix)
        return source.scheme, source.bucket, self.part.store.endpoint, prefix


class Location:
    def __init__(self, parts: tuple[Part, ...], path: str, title: str, counters: Counters) -> None:
        """`path`: of the data set, where this location begins."""
        self.title = title
        path = path.strip("/")
        self._roots: list[_Root] = []
        for part in parts:
            if _is_in(path, part.path):
                root = ("", _rest(path, part.path))
            elif _is_in(part.path, path):
                root = (_rest(part.path, path), "")
            else:
                continue
            store = open_reliable_store(part.source, part.store, counters)
            self._roots.append(_Root(*root, store, part))
        # The deepest first: it hides what the others have there.
        self._roots.sort(key=lambda root: len(root.path), reverse=True)
        at_its_start = [root for root in self._roots if not root.path]
        if len(at_its_start) > 1:
            # Of the parts above the location only the nearest is seen.
            nearest = max(at_its_start, key=lambda root: len(root.part.path))
            self._roots = [root for root in self._roots if root.path or root is nearest]

    def list_all(self) -> Iterator[list[Found]]:
        """Its objects, page by page; markers of directories are none. As of a mount, a listing
        that is too long, or never ends, is an error."""
        listed = 0
        for root in self._roots:
            deeper = [other.path for other in self._roots if len(other.path) > len(root.path)]
            found_any = False
            if root.is_plain_file():
                yield self._single(root)
                continue
            for page in root.store.list_all(root.prefix):
                found_any = found_any or bool(page)
                listed += len(page)
                if listed > MOST_FILES:
                    raise SourceError(
                        f"{self.title}: more than {MOST_FILES:,} objects",
                        hint="migrate one prefix after the other",
                    )
                yield [
                    Found(path, root.store, info)
                    for info in page
                    if info.version
                    and not info.key.endswith("/")
                    and (path := root.path_of(info.key))
                    and not any(_is_in(path, below) for below in deeper)
                ]
            if not found_any and root.prefix:
                yield self._single(root)

    def find(self, path: str) -> tuple[Store, str]:
        """Which store holds what lies there, and under which key; for one that is to be written."""
        for root in self._roots:
            if _is_in(path, root.path) and path != root.path:
                return root.store, root.key(path)
        raise UsageError(
            f"{self.title}: nothing can be written to {path!r}: no mount of the data set is there",
            hint="name a path that one of its mounts holds",
        )

    def overlaps(self, other: "Location") -> bool:
        return any(
            mine.place[:3] == theirs.place[:3]
            and (_is_in(mine.place[3], theirs.place[3]) or _is_in(theirs.place[3], mine.place[3]))
            for mine in self._roots
            for theirs in other._roots
        )

    def _single(self, root: _Root) -> list[Found]:
        """The one object that is called as the location is, if it is no folder."""
        folder, _, name = root.prefix.rpartition("/")
        level = root.store.list_level(folder)
        return [
            Found(name, root.store, info)
            for info in (level.objects if level else ())
            if info.key == root.prefix and info.version
        ]


def make_folder(part: Part) -> None:
    """A folder of this machine that is to be written to; a bucket must be there."""
    if part.source.scheme == "file":
        try:
            Path(part.source.prefix).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{part.source}: {error.strerror}", hint="name a folder that you can write to"
            ) from error
    if part.source.scheme in ("http", "https"):
        raise UsageError(
            f"{part.source}: a web server is not written to", hint="name a bucket or a folder"
        )


def _is_in(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _rest(path: str, folder: str) -> str:
    return path[len(folder) :].removeprefix("/") if folder else path


def _joined(*names: str) -> str:
    return "/".join(name for name in names if name)


# Four parts of each may wait to be sent, and one is being read.
_LARGE_AT_ONCE = 4
_MOST_TRIES = 3
_WAIT_S = 0.01

_large = threading.BoundedSemaphore(_LARGE_AT_ONCE)


class Stopped(Exception):
    """The migration has given up, or its time is over."""


class Copier:
    def __init__(
        self,
        *,
        rate_limit: RateLimit | None,
        moved: Callable[[int], None],
        stopping: threading.Event,
    ) -> None:
        """`moved` is told of each piece that has been read."""
        self._rate_limit = rate_limit
        self._moved = moved
        self._stopping = stopping

    def copy(self, found: Found, target: Store, key: str) -> str:
        """The target's version of it."""
        if found.info.size_bytes <= PART_BYTES:
            return self._copy(found, target, key)
        with _large:
            return self._copy(found, target, key)

    def _copy(self, found: Found, target: Store, key: str) -> str:
        one = _Passing(self, found)
        refused: list[str] = []
        for _ in range(_MOST_TRIES):
            version = target.put_file(key, one.chunks, found.info.size_bytes)
            digest = one.digest
            if not digest.contradicts(version) or digest.name() in refused:
                return version
            refused.append(digest.name())
        raise StoreError(
            f"{target.identity}/{key}: what was written does not match its ETag", kind="mismatch"
        )

    def pass_by(self, size_bytes: int) -> None:
        while self._rate_limit is not None and not self._rate_limit.take(size_bytes):
            self.look_up()
            time.sleep(_WAIT_S)
        self.look_up()
        self._moved(size_bytes)

    def look_up(self) -> None:
        if self._stopping.is_set():
            raise Stopped


class _Passing:
    """The bytes of one object on their way."""

    def __init__(self, copier: Copier, found: Found) -> None:
        self._copier = copier
        self._found = found
        self._refused: str | None = None
        self.digest = Digest(found.info.size_bytes)

    def chunks(self) -> Iterator[Buffer]:
        info = self._found.info
        self.digest = Digest(info.size_bytes, whole=is_md5(info.version))
        last: Buffer | None = None
        for start in range(0, info.size_bytes, PART_BYTES):
            if last is not None:
                yield last
            length = min(PART_BYTES, info.size_bytes - start)
            last = self._found.store.get(info.key, info.version, start, length, info.size_bytes)
            self.digest.update(last)
            self._copier.pass_by(length)
        self._compare()
        if last is not None:
            yield last

    def _compare(self) -> None:
        version = self._found.info.version
        # Of one that came in parts nobody knows how it was cut up.
        if not is_md5(version) or not self.digest.contradicts(version):
            return
        before, self._refused = self._refused, self.digest.name()
        if before != self._refused:
            raise StoreError(
                f"{self._found.store.identity}/{self._found.info.key}: what came does not match "
                "its ETag",
                kind="mismatch",
            )
