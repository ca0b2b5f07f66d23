"""The two ends of a migration: a data set, which may have several stores, or an external storage.

A location has paths of its own, relative to where it begins. It finds the store and the key for
each path. As on the mount, the deepest of several parts wins.

Threading: any thread, once it is open.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.catalog.staging import MOST_FILES
from penstock.errors import SourceError, UsageError
from penstock.metrics import Counters
from penstock.operations.work import Work
from penstock.settings import Part
from penstock.specs.operations import DataToMigrate, ExternalStorage
from penstock.store import ObjectInfo, Store
from penstock.store.retry import open_reliable_store


class Found(NamedTuple):
    """An object and its path in its location."""

    path: str
    store: Store
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class _Root:
    """One store of a location: `path` of the location is `prefix` of the store."""

    path: str
    prefix: str
    store: Store
    part: Part

    def key(self, path: str) -> str:
        return _joined(self.prefix, _rest(path, self.path))

    def path_of(self, key: str) -> str:
        return _joined(self.path, _rest(key, self.prefix))

    def is_plain_file(self) -> bool:
        """Whether it is one file of this machine; for a bucket only a listing shows that."""
        source = self.part.source
        return source.scheme == "file" and Path(source.prefix, self.prefix).is_file()

    @property
    def place(self) -> tuple[str, str, str | None, str]:
        """The identity of this place: scheme, bucket, endpoint, prefix."""
        source = self.part.source
        prefix = _joined(source.prefix.strip("/"), self.prefix)
        return source.scheme, source.bucket, self.part.store.endpoint, prefix


class Location:
    def __init__(self, parts: tuple[Part, ...], path: str, title: str, counters: Counters) -> None:
        """`path` is where in the data set this location begins."""
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
        # The deepest first: it hides what the others have at its path.
        self._roots.sort(key=lambda root: len(root.path), reverse=True)
        at_its_start = [root for root in self._roots if not root.path]
        if len(at_its_start) > 1:
            # Of the parts above the location only the nearest is visible.
            nearest = max(at_its_start, key=lambda root: len(root.part.path))
            self._roots = [root for root in self._roots if root.path or root is nearest]

    def list_all(self) -> Iterator[list[Found]]:
        """Yield its objects, page by page, without directory markers.

        As for a mount, a listing that is too long or never ends is an error.
        """
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
                        hint="migrate one prefix after another",
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
        """Return the store and the key to which a path is written."""
        for root in self._roots:
            if _is_in(path, root.path) and path != root.path:
                return root.store, root.key(path)
        raise UsageError(
            f"{self.title}: cannot write to {path!r}: no mount of the data set is there",
            hint="name a path inside one of its mounts",
        )

    def overlaps(self, other: "Location") -> bool:
        return any(
            mine.place[:3] == theirs.place[:3]
            and (_is_in(mine.place[3], theirs.place[3]) or _is_in(theirs.place[3], mine.place[3]))
            for mine in self._roots
            for theirs in other._roots
        )

    def _single(self, root: _Root) -> list[Found]:
        """Return the one object whose key is the location's prefix, if there is one."""
        folder, _, name = root.prefix.rpartition("/")
        level = root.store.list_level(folder)
        return [
            Found(name, root.store, info)
            for info in (level.objects if level else ())
            if info.key == root.prefix and info.version
        ]


# -- opening -----------------------------------------------------------------------------------


def open_location(
    work: Work, side: DataToMigrate, counters: Counters, where: str, *, written: bool
) -> "Location":
    """Open one end. `where` is its path in the manifest; `written` creates a missing folder."""
    if (side.dataset is None) == (side.external_storage is None):
        raise UsageError(
            f"{where} must name one thing: a dataset or an externalStorage",
            hint=f"write {where}.dataset or {where}.externalStorage",
        )
    if side.dataset is not None:
        namespace = side.dataset.namespace or work.resource.metadata.namespace
        parts = work.parts(side.dataset.name, namespace)
        title = f"dataset {namespace}/{side.dataset.name}"
        path = side.dataset.path
        title += f" {path}" if path.strip("/") else ""
    else:
        assert side.external_storage is not None
        parts, path = (_external(work, side.external_storage),), ""
        title = str(parts[0].source)
    for part in parts if written else ():
        _make_folder(part)
    return Location(parts, path, title, counters)


def _external(work: Work, storage: ExternalStorage) -> Part:
    uri, options = _split_endpoint(storage.uri)
    namespace = work.resource.metadata.namespace
    for option in storage.encrypt_options:
        reference = option.value_from.secret_key_ref
        value = work.secret(namespace, reference.name, reference.key or option.name)
        options[_KEY_NAMES.get(option.name, option.name)] = value
    return work.external(uri, options)


def _make_folder(part: Part) -> None:
    """Create the folder of a target on this machine; a bucket must exist."""
    if part.source.scheme == "file":
        try:
            Path(part.source.prefix).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{part.source}: {error.strerror}", hint="name a folder that you can write to"
            ) from error
    if part.source.scheme in ("http", "https"):
        raise UsageError(
            f"{part.source}: cannot write to a web server", hint="name a bucket or a folder"
        )


# Names of keys in Fluid's manifests, and our names.
_KEY_NAMES = {"access-key": "access-key", "secret-key": "secret-key", "token": "session-token"}

_AWS = re.compile(r"(?P<bucket>[^/]+?)\.s3[.-](?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_ELSEWHERE = re.compile(r"(?P<bucket>[^./]+)\.(?P<endpoint>[^/]+\.[a-z]{2,})")


def _split_endpoint(uri: str) -> tuple[str, dict[str, str]]:
    """Split an address, as `juicefs sync` takes it, into one without its endpoint and options.

    minio://HOST:9000/BUCKET/PREFIX                  s3://BUCKET/PREFIX, endpoint http://HOST:9000
    s3://BUCKET.s3.REGION.amazonaws.com/PREFIX       s3://BUCKET/PREFIX, endpoint and region
    oss://BUCKET.oss-cn-hangzhou.aliyuncs.com/...    oss://BUCKET/..., endpoint
    """
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    if scheme == "minio":
        bucket = path.strip("/")
        if not host or not bucket:
            raise UsageError(
                f"{uri!r} names no bucket", hint="write it like minio://HOST:9000/BUCKET/PREFIX"
            )
        return f"s3://{bucket}", {"endpoint": f"http://{host}", "path-style": "true"}
    if scheme == "s3" and (match := _AWS.fullmatch(host)):
        return _address("s3", match["bucket"], path), {"region": match["region"]}
    if scheme in ("oss", "bos", "obs", "cos") and (match := _ELSEWHERE.fullmatch(host)):
        return _address(scheme, match["bucket"], path), {"endpoint": match["endpoint"]}
    return uri, {}


def _address(scheme: str, bucket: str, path: str) -> str:
    return f"{scheme}://{bucket}/{path}".rstrip("/")


def _is_in(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _rest(path: str, folder: str) -> str:
    return path[len(folder) :].removeprefix("/") if folder else path


def _joined(*names: str) -> str:
    return "/".join(name for name in names if name)
