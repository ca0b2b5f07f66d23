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


def test_what_is_put_is_kept_in_private_files_and_counted_when_it_changes() -> None:
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


def test_a_key_that_is_none_is_told_with_its_place() -> None:
    State().put(KEY, MANIFEST, {"/spec/x": "a-secret-value"})
    state = State()
    (state.folder / "secrets.key").write_bytes(b"")
    with pytest.raises(UsageError, match=r"secrets\.key is not a key"):
        state.secrets(stored(state, KEY))


def test_a_transaction_that_fails_leaves_nothing() -> None:
    state = State()

    def put_and_fail() -> None:
        with state.transaction():
            state.put(KEY, MANIFEST, {})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        put_and_fail()
    assert state.find(KEY) is None


def test_observed_fields_come_beside_what_is_there_and_go_with_it(state: Path) -> None:
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


def test_an_event_that_comes_again_is_counted_and_only_the_last_are_kept() -> None:
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


def test_a_state_of_a_newer_release_and_a_damaged_one_are_refused(state: Path) -> None:
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


def test_a_state_that_belongs_to_somebody_else_is_refused(
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


def test_who_only_reads_waits_for_nobody_who_writes() -> None:
    state = State()
    put(state)
    with state.transaction():
        state.put(ResourceKey("Dataset", "default", "other"), MANIFEST, {})
        with ThreadPoolExecutor(1) as other:  # with a connection of its own
            snapshot = other.submit(lambda: State().snapshot()).result()
    assert list(snapshot.resources) == [KEY]


def test_users_are_looked_for_while_others_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
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
