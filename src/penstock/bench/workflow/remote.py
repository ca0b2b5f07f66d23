"""What a run keeps in object stores: checking access, uploading and removing.

A run writes only below folders of its own name, and removes only those. Keys come from the
environment, or from a Secret that was applied; they are in no file but the one for the experiments.
Safe from any thread.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.bench.plans.model import Plan
from penstock.bench.workspace import in_parallel
from penstock.errors import (
    AccessDenied,
    NoSuchResource,
    ObjectNotFound,
    PenstockError,
    StoreError,
    UsageError,
)
from penstock.metrics import Counters
from penstock.store import ObjectInfo, Store
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys, S3Credentials
from penstock.store.retry import open_reliable_store
from penstock.store.source import parse_source
from penstock.units import MIB

_AT_ONCE = 16  # each waits for the store most of its time
_PIECE_BYTES = 8 * MIB
_DEADLINE_S = 30.0
_PROBE_DEADLINE_S = 10.0  # someone waits for the run to begin


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in a store, and how to open it: without keys, so that it can be written down.

    `url` is the user's, `folder` the run's own below it.
    """

    url: str
    folder: str = ""
    endpoint: str | None = None
    region: str | None = None
    secret_name: str | None = None
    access_key_name: str = ""
    secret_key_name: str = ""

    def below(self, name: str) -> "Place":
        return replace(self, folder=name)

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def __str__(self) -> str:
        return f"{self.url.rstrip('/')}/{self.folder}"


def place(url: str, plan: Plan) -> Place:
    is_file, secret = url.startswith("file://"), plan.s3_secret_name
    return Place(
        url,
        "",
        None if is_file else plan.endpoint,
        None if is_file else plan.region,
        None if secret == "environment" else secret,
        plan.s3_secret_accesskeyid_key_name,
        plan.s3_secret_secretaccesskey_key_name,
    )


def open_place(where: Place, deadline_s: float = _DEADLINE_S) -> Store:
    source = parse_source(where.url)
    keys = None if source.scheme == "file" else declared_keys(where)
    options = StoreOptions(
        endpoint=where.endpoint, region=where.region, keys=keys, deadline_s=deadline_s
    )
    return open_reliable_store(source, options, Counters())


def declared_keys(where: Place) -> Keys | None:
    """Return the keys of the named Secret; None to use those of the environment."""
    if where.secret_name is None:
        return None
    from penstock.reconcile.state import State
    from penstock.specs.kinds import ResourceKey
    from penstock.specs.models import Secret, model_of

    state = State()
    key = ResourceKey("Secret", "default", where.secret_name)
    found = state.find(key)
    if found is None:
        raise NoSuchResource(
            f"s3SecretName: there is no Secret {where.secret_name}",
            hint="apply it, or leave s3SecretName out to use the keys of the environment",
        )
    secret = model_of(found.manifest, state.secrets(found))
    assert isinstance(secret, Secret)
    keys = Keys(
        access_key_id=secret.value_of(where.access_key_name),
        secret_access_key=secret.value_of(where.secret_key_name),
    )
    keys.remember()
    return keys


def plain_keys(where: Place) -> dict[str, str]:
    """Return the user's keys for the file that experiments read."""
    given = S3Credentials(parse_source(where.url), False, declared_keys(where))()
    keys = {"access_key": given["access_key_id"], "secret_key": given["secret_access_key"]}
    token = given.get("token")
    return keys | ({"session_token": token} if token else {})


def probe(where: Place) -> None:
    """Write a small object and remove it: the run needs the rights to both."""
    if (folder := _local_folder(where)) is not None and not folder.exists():
        # It is created when it is needed; check that it could be.
        above = next(one for one in folder.parents if one.exists())
        if not (above.is_dir() and os.access(above, os.W_OK)):
            raise UsageError(f"{where.url}: cannot be made", hint=f"{above} cannot be written")
        return
    key = where.key(f"probe-{secrets.token_hex(4)}")
    try:
        store = open_place(where, _PROBE_DEADLINE_S)
        store.put_file(key, lambda: iter([b"penstock"]), 8)
        store.delete(key)
        _remove_folders(where)
    except ObjectNotFound as error:
        raise UsageError(
            f"{where.url}: cannot be written: there is no such bucket", hint="make it first"
        ) from error
    except StoreError as error:
        what = f"{where.url}: cannot be written: {error}"
        hint = "check `endpoint` in the plan, and the network"
        raise StoreError(what, hint=hint, kind=error.kind) from error
    except AccessDenied as error:
        keys = f"the Secret {where.secret_name}" if where.secret_name else "the environment"
        raise UsageError(
            f"{where.url}: cannot be written: {error}",
            hint=f"the keys of {keys} must be allowed to write and to delete there",
        ) from error
    except PenstockError as error:
        raise UsageError(f"{where.url}: cannot be written: {error}", hint=error.hint) from error


def upload(where: Place, folder: Path, check: Callable[[], None]) -> None:
    """Upload every file below `folder`. `check` raises to stop it."""
    if (target := _local_folder(where)) is not None:
        target.mkdir(parents=True, exist_ok=True)
    store = open_place(where)

    def put(path: Path) -> None:
        check()
        key = where.key(path.relative_to(folder).as_posix())
        store.put_file(key, lambda: _pieces(path), path.stat().st_size)

    paths = [Path(at) / name for at, _, names in os.walk(folder) for name in names]
    in_parallel(put, paths, _AT_ONCE)


def download(where: Place, folder: Path, check: Callable[[], None]) -> None:
    store = open_place(where)

    def get(info: ObjectInfo) -> None:
        check()
        path = folder / info.key.removeprefix(where.key(""))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, info.size_bytes, _PIECE_BYTES):
                length = min(_PIECE_BYTES, info.size_bytes - start)
                file.write(store.get(info.key, info.version, start, length, info.size_bytes))

    found = [info for info in _list(store, where) if info.key[-1:] != "/"]
    in_parallel(get, found, _AT_ONCE)


def size_of(where: Place) -> tuple[int, int]:
    """Return how many objects and bytes lie below a place."""
    sizes = [info.size_bytes for info in _list(open_place(where), where)]
    return len(sizes), sum(sizes)


def remove(where: Place) -> int:
    """Remove everything in a folder that is a run's own; return how many objects."""
    if not where.folder:
        raise ValueError(f"{where.url} does not belong to a run")
    if (folder := _local_folder(where)) is not None and not folder.exists():
        return 0
    store = open_place(where)
    keys = [info.key for info in _list(store, where)]
    in_parallel(store.delete, keys, _AT_ONCE)
    _remove_folders(where)
    return len(keys)


def _list(store: Store, where: Place) -> Iterator[ObjectInfo]:
    for page in store.list_all(where.folder):
        yield from page


def _local_folder(where: Place) -> Path | None:
    source = parse_source(where.url)
    return Path(source.prefix) if source.scheme == "file" else None


def _remove_folders(where: Place) -> None:
    """Remove the folders too, where the place is on this machine; objects have none."""
    if (folder := _local_folder(where)) is not None:
        for at, _, _ in os.walk(folder / where.folder, topdown=False):
            os.rmdir(at)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
