"""`penstock://`: the mounts of this machine as an fsspec file system, read-only.

    fsspec.open("penstock:///mnt/imagenet/train/x.jpg")
    pandas.read_parquet("penstock:///mnt/tables/2026.parquet")

A URL is an absolute path on a mount. Reads behave as with `file://`; a path on no Penstock mount
is refused. In addition:

- `cat`, `cat_ranges` and `get` of many files send the whole list to the mount as a plan, so that
  the files are fetched concurrently, not one after the other;
- `info` has the object's version as `ETag`, and in `cached` how many of its bytes are in the local
  cache; `ukey` and `checksum` are derived from the version, not from times.

Threading: any thread, any process; an instance holds only its options, so it may be pickled and
forked.
"""

# fsspec has no annotations: its types are unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
import os
import shutil
import time
from collections.abc import Sequence
from errno import EROFS
from hashlib import sha256
from typing import Any, NoReturn

from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem
from fsspec.utils import isfilelike, stringify_path

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.errors import NotOnAMount
from penstock.fuse.mounting import FILESYSTEM_TYPE
from penstock.integrations.ordered import each_in_order, read_file
from penstock.integrations.plans import mount_of
from penstock.mounttable import mount_table

_VERSION, _CACHED = "user.penstock.version", "user.penstock.cached"
_THREADS = 8


class PenstockFileSystem(LocalFileSystem):
    protocol = "penstock"

    @property
    def fsid(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "penstock"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        name = str(stringify_path(path))
        # Absolute with two slashes as with three: some callers (such as Hugging Face's datasets)
        # drop the third.
        if name.startswith("penstock:"):
            name = "/" + name.removeprefix("penstock:").lstrip("/")
        return str(super()._strip_protocol(name))

    # -- one file or folder -------------------------------------------------------------

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        if isinstance(path, os.DirEntry):
            # An entry of a listing costs no message. Version and cached bytes would be two messages
            # to the server for each file: fine for one file, not for a million.
            return super().info(path, **kwargs)
        name = self._on_mount(path)
        found = super().info(name, **kwargs)
        if found["type"] == "file":
            found["ETag"] = os.getxattr(name, _VERSION).decode()
            found["cached"] = int(os.getxattr(name, _CACHED))
        return found

    def ls(self, path: Any, detail: bool = False, **kwargs: Any) -> list[Any]:
        return super().ls(self._on_mount(path), detail=detail, **kwargs)

    def isfile(self, path: Any) -> bool:
        return _is_on_mount(_plain(path)) and super().isfile(path)

    def isdir(self, path: Any) -> bool:
        return _is_on_mount(_plain(path)) and super().isdir(path)

    def exists(self, path: Any, **kwargs: Any) -> bool:
        return _is_on_mount(_plain(path)) and os.path.exists(_plain(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        return self.exists(path)  # objects are never links

    def ukey(self, path: Any) -> str:
        """Return a key that changes with the object's version, and only then."""
        found = self.info(path)
        what = f"{found['name']} {found['size']} {found.get('ETag')}"
        return sha256(what.encode("utf-8", "surrogateescape")).hexdigest()

    def checksum(self, path: Any) -> int:
        return int(self.ukey(path), 16)

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        name = self._on_mount(path)
        if start is None and end is None:
            return read_file(name)
        with open(name, "rb", buffering=0) as file:
            start, end, _ = slice(start, end).indices(os.fstat(file.fileno()).st_size)
            file.seek(start)
            parts: list[bytes] = []
            while start < end and (part := file.read(end - start)):
                parts.append(part)
                start += len(part)
            return b"".join(parts)

    def get_file(
        self,
        path1: Any,
        path2: Any,
        callback: Callback | None = None,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        name = self._on_mount(path1)
        target: Any = path2 if outfile is None else outfile
        if isfilelike(target):
            with open(name, "rb") as file:
                shutil.copyfileobj(file, target)
        elif os.path.isdir(name):
            os.makedirs(path2, exist_ok=True)
            return
        else:
            os.makedirs(os.path.dirname(os.path.abspath(path2)), exist_ok=True)
            shutil.copyfile(name, path2)
        if callback is not None:
            size = os.path.getsize(name)
            callback.set_size(size)
            callback.relative_update(size)

    def _open(
        self, path: Any, mode: str = "rb", block_size: int | None = None, **kwargs: Any
    ) -> LocalFileOpener:
        if set(mode) & set("wax+"):
            _refuse(self, path)
        return super()._open(self._on_mount(path), mode, block_size, **kwargs)

    # -- many files at once -------------------------------------------------------------

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        names: list[str] = self.expand_path(path, recursive=recursive, **kwargs)
        if not isinstance(path, list) and names == [_plain(path)] and not recursive:
            return self.cat_file(names[0], **kwargs)
        if recursive:
            names = [name for name in names if not os.path.isdir(name)]
        ranges = [(name, kwargs.get("start"), kwargs.get("end")) for name in names]
        contents = self._read_all(ranges, on_error)
        return {
            name: data
            for name, data in zip(names, contents, strict=True)
            if on_error != "omit" or isinstance(data, bytes)
        }

    def cat_ranges(
        self,
        paths: list[Any],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        if max_gap is not None:
            raise NotImplementedError("ranges are read as they are asked for, without max_gap")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        names = [_plain(path) for path in paths]
        return self._read_all(list(zip(names, starts, ends, strict=True)), on_error)

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        pairs = _Pairs(skip_instance_cache=True)
        pairs.get(rpath, lpath, recursive=recursive, maxdepth=maxdepth, **kwargs)
        callback.set_size(len(pairs.found))
        files = [(source, target) for source, target in pairs.found if not os.path.isdir(source)]
        for _, target in set(pairs.found).difference(files):
            os.makedirs(target, exist_ok=True)
            callback.relative_update()

        def copy(number: int) -> None:
            source, target = files[number]
            with callback.branched(source, target) as child:
                self.get_file(source, target, callback=child)

        for _ in each_in_order([source for source, _ in files], copy, threads=_THREADS):
            callback.relative_update()

    def _read_all(
        self, ranges: Sequence[tuple[str, int | None, int | None]], on_error: str
    ) -> list[bytes | OSError | NotOnAMount]:
        def read(number: int) -> bytes | OSError | NotOnAMount:
            try:
                return self.cat_file(*ranges[number])
            except (OSError, NotOnAMount) as error:
                if on_error == "raise":
                    raise
                return error

        names = [name for name, _, _ in ranges]
        # A plan fetches whole files: not for parts of files that are larger than one GET, of which
        # it would fetch more than is read.
        whole = all(start is None and end is None for _, start, end in ranges)
        plan = whole or all(map(_is_one_block, names))
        found = each_in_order(names, read, threads=_THREADS, plan=plan)
        return [data for _, data in found]

    # -- what is refused ----------------------------------------------------------------

    def _on_mount(self, path: Any) -> str:
        name = _plain(path)
        if not _is_on_mount(name):
            error = NotOnAMount(
                f"{name} is not on a Penstock mount",
                hint="a URL is an absolute path on a mount, like penstock:///mnt/imagenet/train; "
                "`penstock stats` lists your mounts, and file:// reads any other path",
            )
            error.add_note(f"hint: {error.hint}")  # a traceback shows notes
            raise error
        return name


def _refuse(_self: PenstockFileSystem, *paths: Any, **options: Any) -> NoReturn:
    path = next(iter((*paths, *options.values())), "")
    raise OSError(EROFS, "a Penstock mount is read-only", _plain(path))


# All operations that write. fsspec's others (pipe, put, copy, rename, write_text and so on) call
# these, and so fail too.
for _verb in (
    "mkdir",
    "makedirs",
    "rmdir",
    "rm",
    "rm_file",
    "_rm",
    "touch",
    "chmod",
    "mv",
    "cp_file",
    "link",
    "symlink",
    "put_file",
    "pipe_file",
):
    setattr(PenstockFileSystem, _verb, _refuse)


class _Pairs(PenstockFileSystem):
    """Collects what `get` would copy, since fsspec's rules for the targets are many."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.found: list[tuple[str, Any]] = []

    def get(self, rpath: Any, lpath: Any, *rest: Any, **options: Any) -> None:
        LocalFileSystem.get(self, rpath, lpath, *rest, **options)

    def get_file(self, path1: Any, path2: Any, *_rest: Any, **_options: Any) -> None:
        self.found.append((self._on_mount(path1), path2))


def _plain(path: Any) -> str:
    return PenstockFileSystem._strip_protocol(path)  # pyright: ignore[reportPrivateUsage]


def _is_on_mount(name: str) -> bool:
    try:
        device = os.stat(name).st_dev
    except OSError:  # no such file, or a mount that does not answer: look at its path
        return mount_of(os.path.join(name, "")) is not None
    return _mounted.has(device)


class _Mounted:
    """The devices that are Penstock mounts. Any thread.

    Reading the mount table takes 0.3 ms, a warm file 0.02 ms. So a device that was found in the
    table is trusted for a second; one that was not is looked up again.
    """

    def __init__(self) -> None:
        self._read: tuple[float, frozenset[int]] = (-math.inf, frozenset())

    def has(self, device: int) -> bool:
        when, devices = self._read
        now = time.monotonic()
        if device not in devices or now > when + 1:
            devices = frozenset(
                os.makedev(*map(int, entry.device.split(":")))
                for entry in mount_table()
                if entry.kind == FILESYSTEM_TYPE
            )
            self._read = now, devices
        return device in devices


_mounted = _Mounted()


def _is_one_block(name: str) -> bool:
    try:
        return os.path.getsize(name) <= DEFAULT_BLOCK_BYTES
    except OSError:
        return True  # no such file: the read raises the error
