"""Where a migration copies from or to: one store, or a data set that is made of several.

A location has paths of its own, relative to where it begins; which store holds what lies there,
and under which key, is found here. As on the mount, of two parts the one deeper down wins.

Threading: any thread once it is open.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.daemon.settings import Part
from penstock.errors import UsageError
from penstock.metrics import Counters
from penstock.store import ObjectInfo, Store
from penstock.store.reliable import open_reliable_store


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
        """Its objects, page by page; markers of directories are none."""
        for root in self._roots:
            deeper = [other.path for other in self._roots if len(other.path) > len(root.path)]
            found_any = False
            if root.is_plain_file():
                yield self._single(root)
                continue
            for page in root.store.list_all(root.prefix):
                found_any = found_any or bool(page)
                yield [
                    Found(path, root.store, info) for info in page
                    if info.version and not info.key.endswith("/")
                    and (path := root.path_of(info.key))
                    and not any(_is_in(path, below) for below in deeper)
                ]  # fmt: skip
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
