"""DataBackup: a data set's catalog and the list of what is cached, in one file; and back.

    manifest.json     which data set, which mounts, when, by which Penstock
    catalog.sqlite    as the mount has it: names, sizes, versions
    cached.jsonl      path, version, size and cached bytes of each file of which something is cached

The bytes themselves are not in it: they are in the bucket, and are loaded again. No key and no
password is in it either; names are, so the file is its owner's alone.
"""

import contextlib
import json
import os
import platform
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from penstock.catalog.schema import SCHEMA_VERSION
from penstock.catalog.tree import Tree
from penstock.daemon.warming import Warming, Wish
from penstock.errors import UsageError
from penstock.operations.work import Work
from penstock.paths import open_private
from penstock.release import __version__
from penstock.settings import Part
from penstock.specs.operations import DataBackup

Json = dict[str, Any]

ENDING = ".penstock-backup.tar.gz"
_FORMAT = 1
_MANIFEST, _CATALOG, _CACHED = "manifest.json", "catalog.sqlite", "cached.jsonl"
_MOST_MANIFEST_BYTES = 1 << 20
# The longest path, each byte of it escaped, fits several times.
_LINE_MAX = 131_072


def run(work: Work) -> Json:
    resource = work.resource
    assert isinstance(resource, DataBackup)
    name, namespace = resource.spec.dataset, resource.metadata.namespace
    mountpoint = work.mountpoint(name, namespace)
    folder = local_folder(resource.spec.backup_path, "spec.backupPath")
    work.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    work.report({"phase": "looking"})
    with open(work.folder / _CACHED, "w+b", opener=open_private) as cached:
        with Warming(mountpoint, Wish("list")) as warming:
            listed = warming.run(everything=True, output=cached.fileno())
        work.report({"phase": "saving", "files": listed["listed_files"]})
        totals = _copy_catalog(work.catalog(name, namespace), work.folder / _CATALOG)
        manifest = {
            "format": _FORMAT,
            "penstock": __version__,
            "created_s": int(time.time()),
            "dataset": name,
            "namespace": namespace,
            "parts": _parts(work.parts(name, namespace)),
            "catalog": {"schema": SCHEMA_VERSION, **totals},
            "cached": {"files": listed["listed_files"], "bytes": listed["cached_bytes"]},
        }
        (work.folder / _MANIFEST).write_text(json.dumps(manifest, indent=2))
    user = resource.spec.run_as
    owner = (user.uid, user.gid) if user is not None else (None, None)
    _pack(work.folder, folder, f"{name}-{namespace}{ENDING}", owner)
    return {
        "BackupLocationPath": resource.spec.backup_path,
        "BackupLocationNodeName": platform.node(),
        "Files": f"{totals['files']:,}",
        "CachedFiles": f"{listed['listed_files']:,}",
    }


def restore(
    location: Path,
    catalog_path: Path,
    *,
    name: str | None = None,
    parts: tuple[Part, ...] | None = None,
) -> None:
    """Puts the catalog in place, before the mount that will use it. `location` is the backup or the
    folder that holds it, there called by `name` (DATASET-NAMESPACE). A catalog that is there
    already stays. With `parts`, a backup of other mounts is refused: its versions would mean other
    objects."""
    with _opened(location, name) as (archive, file):
        manifest = _read_manifest(archive, file)
        if parts is not None and manifest.get("parts") != _parts(parts):
            raise UsageError(
                f"{file} is a backup of other mounts",
                hint="restore it into a data set with the same mountPoints and paths",
            )
        if not catalog_path.exists():
            _put_catalog(archive, file, catalog_path)


def cached_paths(location: Path, name: str | None = None) -> list[str]:
    """The files that were cached when the backup was made."""
    with _opened(location, name) as (archive, file):
        _read_manifest(archive, file)
        with _member(archive, _CACHED, file) as lines:
            return [entry["path"] for entry in _entries(lines, file)]


@contextmanager
def _opened(location: Path, name: str | None) -> Iterator[tuple[tarfile.TarFile, Path]]:
    file = _find(location, name)
    try:
        with tarfile.open(file, "r:gz") as archive:
            yield archive, file
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise UsageError(f"{file}: {error.strerror}") from error
        raise _broken(file, str(error)) from error


def local_folder(location: str, field: str) -> Path:
    """`local:///folder` as a path; what no machine can hold by itself is refused."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme in ("local", "file") and rest.startswith("/"):
        return Path(unquote(rest) if scheme == "file" else rest)
    hint = "write it like local:///backups/"
    if scheme == "pvc":
        hint = "there are no volume claims on one machine; name a folder: local:///backups/"
    raise UsageError(f"{field}: {location!r} is not a folder of this machine", hint=hint)


# -- saving ----------------------------------------------------------------------------------


def _copy_catalog(catalog: Path, to: Path) -> Json:
    """As it is at one moment, while the mount goes on with it."""
    to.unlink(missing_ok=True)
    os.close(os.open(to, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with (
        Tree(catalog, read_only=True).reading() as source,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy)  # in one step: no refresh can come between
        # No kernel holds inodes of a mount that will be: what is gone from the bucket stays out.
        copy.executescript(
            "PRAGMA journal_mode = DELETE; BEGIN; DELETE FROM nodes WHERE dead = 1; "
            "DELETE FROM changes; COMMIT; VACUUM;"
        )
        meta = dict(copy.execute("SELECT key, value FROM meta").fetchall())
    return {key: meta.get(key, 0) for key in ("files", "bytes", "listed_at")}


def _pack(folder: Path, to: Path, name: str, owner: tuple[int | None, int | None]) -> None:
    partial = to / f".{name}.part"
    try:
        to.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb", opener=open_private) as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                for member in (_MANIFEST, _CATALOG, _CACHED):
                    archive.add(folder / member, member, filter=_nobody)
            file.flush()
            os.fsync(file.fileno())
        if owner != (None, None):
            os.chown(
                partial, -1 if owner[0] is None else owner[0], -1 if owner[1] is None else owner[1]
            )
        partial.replace(to / name)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"{to}: {error.strerror or error}",
            hint="name a folder with room, that you may write to",
        ) from error
    for member in (_MANIFEST, _CATALOG, _CACHED):
        (folder / member).unlink()


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def _parts(parts: tuple[Part, ...]) -> list[list[str]]:
    return [[part.path, str(part.source)] for part in parts]


# -- and back --------------------------------------------------------------------------------


def _find(location: Path, name: str | None) -> Path:
    if not location.is_dir():
        return location
    if name is not None and (location / f"{name}{ENDING}").exists():
        return location / f"{name}{ENDING}"
    found = sorted(location.glob(f"*{ENDING}"))
    if name is not None or len(found) != 1:
        what = f"no backup of {name}" if name else f"{len(found)} backups"
        there = ", ".join(path.name for path in found[:5])
        raise UsageError(
            f"{location} holds {what}",
            hint=f"name the file itself; there is {there}" if there else "check the folder",
        )
    return found[0]


def _read_manifest(archive: tarfile.TarFile, file: Path) -> Json:
    with _member(archive, _MANIFEST, file) as member:
        manifest: Json = json.loads(member.read(_MOST_MANIFEST_BYTES))
    if manifest["format"] != _FORMAT or manifest["catalog"]["schema"] != SCHEMA_VERSION:
        raise UsageError(
            f"{file} is a backup of another Penstock ({manifest.get('penstock')})",
            hint="leave dataRestoreLocation out: the catalog is built again from the bucket",
        )
    return manifest


def _put_catalog(archive: tarfile.TarFile, file: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.restored")
    try:
        with (
            _member(archive, _CATALOG, file) as member,
            open(fresh, "wb", opener=open_private) as out,
        ):
            shutil.copyfileobj(member, out, 1 << 20)
        with contextlib.closing(sqlite3.connect(fresh)) as catalog:
            version = catalog.execute("PRAGMA user_version").fetchone()[0]
            verdict = catalog.execute("PRAGMA quick_check(1)").fetchone()[0]
        if version != SCHEMA_VERSION or verdict != "ok":
            raise _broken(file, f"its catalog: {verdict}, schema {version}")
        # Those of a catalog that was deleted are not this one's.
        path.with_name(f"{path.name}.sums").unlink(missing_ok=True)
        os.rename(fresh, path)
    except sqlite3.Error as error:
        raise _broken(file, f"its catalog: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)


def _entries(lines: IO[bytes], file: Path) -> Iterator[Json]:
    while line := lines.readline(_LINE_MAX):
        if not line.endswith(b"\n"):
            raise _broken(file, "its list of cached files was cut off")
        yield json.loads(line)


def _member(archive: tarfile.TarFile, name: str, file: Path) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise _broken(file, f"{name} is not a file")
    return found


def _broken(file: Path, why: str) -> UsageError:
    return UsageError(
        f"{file} is not a backup that can be read: {why}",
        hint="leave dataRestoreLocation out: the catalog is built again from the bucket",
    )
