"""Many data sets on one machine: `get` shows them all, asks each mount once, and waits for none."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock import api
from penstock.daemon.control import ControlServer, listen
from penstock.daemon.registry import MountNote, control_socket, find_note, write_note
from penstock.resources import live
from penstock.resources.admission import apply
from penstock.resources.state import State
from tests.support.datasets import of_folder, ours, path_of
from tests.support.mounts import penstock
from tests.support.waiting import wait_until

MANY = 50
BRIEF = {
    "files": 7, "bytes": 700, "cached_bytes": 70, "capacity_bytes": 1 << 20,
    "hit_bytes": {}, "store_bytes": 0,
}  # fmt: skip


@pytest.fixture
def many(declared: State, tmp_path: Path) -> State:
    """Declared, and said to be bound; nobody serves them yet."""
    apply(declared, api.read([of_folder(f"set-{number:03}", tmp_path) for number in range(MANY)]))
    return declared


@contextmanager
def answering(state: State, names: list[str]) -> Iterator[Counter[str]]:
    """Sockets that answer as mounts do, and count how often each was asked.

    So many real mounts would be a hundred processes. What is asked of one is the same.
    """
    asked: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in names:
            mountpoint = state.folder / "data" / "default" / name

            def brief(_request: object, name: str = name) -> dict[str, object]:
                asked[name] += 1
                return BRIEF

            server = ControlServer(listen(control_socket(mountpoint)), {"brief": brief}, {})
            stack.callback(server.close)
        yield asked


def pretend_bound(state: State, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As far as `live` looks: in the mount table, noted, with processes."""
    names: list[str] = []
    for one in state.all(["Dataset"]):
        mountpoint = state.folder / "data" / "default" / one.key.name
        state.observe(one.uid, status={"phase": "Bound"}, note={"mountpoint": str(mountpoint)})
        write_note(MountNote(str(mountpoint), str(one.key), os.getpid(), 0.0, None))
        names.append(one.key.name)
    entries = [_Entry(str(state.folder / "data" / "default" / name)) for name in names]
    monkeypatch.setattr(live, "mount_table", lambda: entries)
    monkeypatch.setattr(MountNote, "processes", property(lambda _note: [1]))
    return names


class _Entry:
    def __init__(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint


def test_get_prints_a_line_for_each_and_imports_neither_models_nor_stores(many: State) -> None:
    program = (
        "import sys; from penstock.cli.app import main; sys.argv = ['penstock', 'get', 'datasets'];"
        "\ntry: main()\nexcept SystemExit as end: assert not end.code\n"
        "print({'pydantic', 'obstore', 'botocore', 'yaml'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "set()\n"
    lines = done.stdout.splitlines()
    assert len(lines) == MANY + 1
    assert [line.split()[0] for line in lines[1:]] == [f"set-{n:03}" for n in range(MANY)]
    assert len(penstock("get", "datasets", "-o", "name").stdout.splitlines()) == MANY


def test_each_mount_is_asked_once_and_shown_as_it_was_seen_if_it_does_not_answer(
    many: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = pretend_bound(many, monkeypatch)
    with monkeypatch.context() as patient:
        patient.setattr(live, "_ANSWERS_WITHIN_S", 30)  # it is not the machine that is tried
        with answering(many, names) as asked:
            shown = api.get_all("datasets")
    assert asked == dict.fromkeys(names, 1)
    assert {one.status["fileNum"] for one in shown} == {"7"}
    for one in many.all(["Dataset"]):
        many.observe(one.uid, status={"ufsTotal": "12.00B", "fileNum": "3"})
    with ExitStack() as stack:
        for name in names:  # they take the question, and say nothing
            place = control_socket(many.folder / "data" / "default" / name)
            stack.enter_context(listen(place))
        shown = api.get_all("datasets")
    assert len(shown) == MANY
    assert {(one.phase, one.status["fileNum"]) for one in shown} == {("Bound", "3")}


def test_one_that_hangs_holds_nobody_up(declared: State, source: Path, tmp_path: Path) -> None:
    for name in ("good", "stopped"):
        api.apply([of_folder(name, source), ours(name, tmp_path / "cache")])
    assert penstock("get", "datasets").returncode == 0
    note = find_note(path_of("stopped"))
    assert note.server_pid is not None
    os.kill(note.pid, signal.SIGSTOP)  # or it would replace the other
    os.kill(note.server_pid, signal.SIGSTOP)
    try:
        described = penstock("describe", "dataset", "stopped")
        assert described.returncode == 0
        assert "5.00B" in described.stdout
        good, stopped = penstock("get", "datasets").stdout.splitlines()[1:]
        for line in (good, stopped):
            assert re.match(r"(good|stopped) +5\.00B +0\.00B +64\.00MiB +0\.0% +Bound ", line)
        # Others come and go meanwhile.
        api.apply([of_folder("more", source), ours("more", tmp_path / "cache")])
        api.delete("dataset", "more")
    finally:
        os.kill(note.server_pid, signal.SIGCONT)
        os.kill(note.pid, signal.SIGCONT)
    wait_until(lambda: (path_of("stopped") / "file").read_bytes() == b"bytes")


def test_many_are_applied_and_deleted_at_once(declared: State, tmp_path: Path) -> None:
    """Without runtimes nothing is mounted: it is the loop that is seen here."""
    manifests = [of_folder(f"set-{number:03}", tmp_path) for number in range(MANY)]
    api.apply(manifests)
    assert {one.phase for one in api.get_all("datasets")} == {"NotBound"}
    assert {one.outcome for one in api.apply(manifests)} == {"unchanged"}
    api.delete("dataset", *(one["metadata"]["name"] for one in manifests))
    assert declared.all() == []
