"""DataBackup: save a data set's catalog and the list of its cached files, and restore them.

    manifest.json     which data set, which mounts, when, by which Penstock
    catalog.sqlite    the mount's catalog: names, sizes, versions
    cached.jsonl      path, version, size and cached bytes of each file of which something is cached

The data itself is in the bucket, and is loaded again. The backup holds no keys and no passwords. It
holds names of files, so only its owner can read it.
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
from penstock.daemon.warm_client import WarmClient, WarmRequest
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
# Enough for the longest path, with each byte escaped.
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
        with WarmClient(mountpoint, WarmRequest("list")) as warming:
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
    """Restore the catalog, before the mount that will use it. An existing catalog is kept.

    `location` is the backup or its folder, where `name` (DATASET-NAMESPACE) finds it. With `parts`,
    a backup of other mounts is refused: its versions would belong to other objects.
    """
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
    """Return the paths of files that were cached when the backup was made."""
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
    """Return the path of `local:///folder`; raises UsageError for any other address."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme in ("local", "file") and rest.startswith("/"):
        return Path(unquote(rest) if scheme == "file" else rest)
    hint = "write it like local:///backups/"
    if scheme == "pvc":
        hint = "there are no volume claims on one machine; name a folder: local:///backups/"
    raise UsageError(f"{field}: {location!r} is not a folder of this machine", hint=hint)


# -- saving ----------------------------------------------------------------------------------


def _copy_catalog(catalog: Path, to: Path) -> Json:
    """Copy a consistent snapshot, while the mount uses it; return its totals."""
    to.unlink(missing_ok=True)
    os.close(os.open(to, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with (
        Tree(catalog, read_only=True).reading() as source,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy)  # in one step: no refresh can happen in between
        # A future mount has no inodes in a kernel, so deleted files need not be kept.
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
                    archive.add(folder / member, member, filter=_anonymous)
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
            hint="name a folder that you can write to, with enough space",
        ) from error
    for member in (_MANIFEST, _CATALOG, _CACHED):
        (folder / member).unlink()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
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
            f"{file} is a backup of another release of Penstock ({manifest.get('penstock')})",
            hint="leave dataRestoreLocation out: the catalog is rebuilt from the bucket",
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
        # Checksums of a deleted catalog do not match this one.
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
        f"{file} cannot be read as a backup: {why}",
        hint="leave dataRestoreLocation out: the catalog is rebuilt from the bucket",
    )
