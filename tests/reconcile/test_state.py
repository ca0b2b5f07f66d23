"""What is wanted and what was observed: each change whole or not at all, secrets sealed."""

import errno
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.fuse.holders import Holders
from penstock.reconcile import deletion
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support.datasets import stored

KEY = ResourceKey("Dataset", "default", "imagenet")
MANIFEST = {
    "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset",
    "metadata": {"name": "imagenet", "namespace": "default"}, "spec": {"mounts": []},
}  # fmt: skip


def put(state: State) -> Stored:
    """MANIFEST, applied."""
    state.put(KEY, MANIFEST, {})
    return stored(state, KEY)


def test_a_stored_resource_is_in_private_files_and_counted_when_it_changes() -> None:
    assert State().put(KEY, MANIFEST, {"/spec/x": "a-secret-value"}) == "created"
    state = State()
    found = stored(state, KEY)
    assert (found.manifest, found.generation, found.deleting) == (MANIFEST, 1, None)
    assert state.secrets(found) == {"/spec/x": "a-secret-value"}
    files = {path.name: path.stat().st_mode for path in state.folder.iterdir() if path.is_file()}
    assert {"resources.sqlite", "secrets.key"} <= files.keys()
    assert [name for name, mode in files.items() if mode & 0o077] == []
    before = state.changes()
    assert state.put(KEY, MANIFEST, {"/spec/x": "a-secret-value"}) == "unchanged"
    assert state.changes() == before
    assert state.put(KEY, MANIFEST, {"/spec/x": "other"}) == "configured"
    assert state.changes() == before + 1
    assert stored(state, KEY).generation == 2
    state.mark_deleted(found.uid, {"at_s": 0.0})
    with pytest.raises(UsageError, match="being deleted"):
        state.put(KEY, MANIFEST, {})


def test_an_invalid_key_is_reported_with_its_file() -> None:
    State().put(KEY, MANIFEST, {"/spec/x": "a-secret-value"})
    state = State()
    (state.folder / "secrets.key").write_bytes(b"")
    with pytest.raises(UsageError, match=r"secrets\.key is not a key"):
        state.secrets(stored(state, KEY))


def test_a_failed_transaction_leaves_nothing() -> None:
    state = State()

    def put_and_fail() -> None:
        with state.transaction():
            state.put(KEY, MANIFEST, {})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        put_and_fail()
    assert state.find(KEY) is None


def test_observed_fields_are_stored_beside_the_spec_and_removed_with_it(state: Path) -> None:
    resources = State()
    uid = put(resources).uid
    resources.record(uid, status={"phase": "Bound", "fileNum": "1"}, note={"a": 1})
    resources.record(uid, status={"fileNum": None}, note={"b": 2})
    found = stored(resources, KEY)
    assert (found.status, found.note) == ({"phase": "Bound"}, {"a": 1, "b": 2})
    resources.add_event(uid, "Bound", "to something")
    resources.forget(uid)
    # What is seen too late leaves nothing behind.
    resources.record(uid, status={"phase": "Bound"})
    resources.add_event(uid, "Bound", "too late")
    with sqlite3.connect(state / "resources.sqlite") as database:
        for table in ("wanted", "observed", "events"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_repeated_events_are_counted_and_only_the_last_are_kept() -> None:
    state = State()
    found = put(state)
    for _ in range(3):
        state.add_event(found.uid, "Failed", "no such bucket", kind="Warning")
    (event,) = state.events(found.uid)
    assert (event.count, event.kind) == (3, "Warning")
    for number in range(50):
        state.add_event(found.uid, "Step", str(number))
    assert [event.message for event in state.events(found.uid)][-1] == "49"
    assert len(state.events(found.uid)) == 20


def test_a_state_of_a_newer_release_or_a_damaged_one_is_rejected(state: Path) -> None:
    State()
    with sqlite3.connect(state / "resources.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="newer release"):
        State()
    for path in state.glob("resources.sqlite*"):
        path.unlink()
    (state / "resources.sqlite").write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(UsageError, match=r"resources\.sqlite"):
        State()


def test_a_state_owned_by_another_user_is_rejected(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UsageError, match=r"resources\.sqlite: Permission denied") as refused:
        State()
    assert "PENSTOCK_STATE_DIR" in (refused.value.hint or "")


def test_many_processes_write_at_once_and_nothing_is_lost() -> None:
    State()
    script = (
        "import sys; from penstock.reconcile.state import State; "
        "from penstock.specs.kinds import ResourceKey\n"
        "for n in range(20): State().put(ResourceKey('Secret', sys.argv[1], f's{n}'), "
        "{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {}}, {'/data/k': 'value'})"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, f"ns{number}"], env=os.environ)
        for number in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    state = State()
    assert len(state.all()) == 80
    assert {state.secrets(one)["/data/k"] for one in state.all()} == {"value"}


def test_a_reader_of_the_state_does_not_wait_for_writers() -> None:
    state = State()
    put(state)
    with state.transaction():
        state.put(ResourceKey("Dataset", "default", "other"), MANIFEST, {})
        with ThreadPoolExecutor(1) as other:  # with a connection of its own
            snapshot = other.submit(lambda: State().snapshot()).result()
    assert list(snapshot.resources) == [KEY]


def test_deletion_looks_for_users_without_locking_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = State()
    found = put(state)
    state.record(found.uid, note={"mountpoint": "/nowhere"})

    def look(_mountpoint: Path, *, skip_self: bool) -> Holders:
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: State().add_event(found.uid, "Seen", "meanwhile")).result()
        return Holders([], [], 0)

    monkeypatch.setattr(deletion, "holders", look)
    deletion.delete(state, [found])
    assert [event.reason for event in state.events(found.uid)] == ["Seen"]
