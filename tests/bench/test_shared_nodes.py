"""The benchmark of the shared tier: several nodes on this machine, and nothing left of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from penstock import procfs
from penstock.bench import measure
from penstock.bench.datasets import SMALL_BYTES
from penstock.bench.shared.__main__ import main, parse_settings
from penstock.bench.shared.cluster import Settings
from penstock.bench.shared.report import Row, to_markdown
from penstock.bench.shared.servers import spoil, values_at
from penstock.bench.workflow import registry
from penstock.bench.workspace import MARK
from penstock.errors import UsageError
from penstock.units import MIB
from tests.support.bench_ground import assert_nothing_left
from tests.support.memcached import Memcached, memcached
from tests.support.waiting import wait_until

FILES = 60
TINY = {
    "small_files": FILES,
    "large_files": 2,
    "large_mib": 9,  # two blocks, and pieces of 512 KiB
    "rounds": 1,
    "readers": 3,
    "epoch_s": 2,
    "failure_s": 1.5,  # longer than a member may take for an answer
    "latency_ms": 5,
}
MACHINE = {"cores": 2, "kernel": "6.18"}


def test_settings_are_changed_by_name() -> None:
    settings = parse_settings(["small_files=300", "link_gbit=0", "demand=12.5"])
    assert (settings.small_files, settings.link_gbit, settings.demand) == (300, 0.0, 12.5)
    assert settings.nodes == Settings().nodes


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("colour=red", "no such setting"),
        ("readers=many", "not a whole number"),
        ("link_gbit=fast", "not a number"),
        ("readers=0", "1 or more"),
        ("members=4", "fewer members than nodes"),
        ("nodes=2", "3 to 99 nodes"),
    ],
)
def test_a_setting_that_cannot_be_is_a_mistake_of_the_user(words: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_settings([words])
    assert what in f"{caught.value} {caught.value.hint}"


def test_without_root_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([]) == 2
    assert "hint: run it as root" in capsys.readouterr().err


def test_the_table_says_which_targets_are_met() -> None:
    rows = [
        Row("few", 1.0, at_most=1.02),
        Row("many", 0.5, at_least=0.8, note="a note"),
        Row("none", 0, at_most=0),
        Row("other", 12.34, "µs"),
    ]
    assert [row.met for row in rows] == [True, False, True, None]
    table = to_markdown(rows, Settings(), MACHINE).splitlines()[4:]
    assert table == [
        "| few | 1 | ≤ 1.02 | yes |  |",
        "| many | 0.5 | ≥ 0.8 | **no** | a note |",
        "| none | 0 | 0 | yes |  |",
        "| other | 12.3 µs |  |  |  |",
    ]


@pytest.fixture
def member() -> Iterator[Memcached]:
    with memcached() as one:
        yield one


def test_every_value_of_a_member_is_found_and_spoiled(member: Memcached) -> None:
    wanted = {f"ps:{number:02x}:0".encode(): 1000 + number for number in range(30)}
    for key, length in wanted.items():
        assert member.ask(b"ms %s %d\r\n%s\r\n" % (key, length, b"v" * length)) == b"HD\r\n"
    member.ask(b"mg a-lease N30 v t\r\n")
    assert dict(values_at("127.0.0.1", member.port)) == wanted
    assert spoil("127.0.0.1", member.port, seed=1) == len(wanted)
    after = dict(values_at("127.0.0.1", member.port))
    assert set(after) == set(wanted)
    assert sum(after[key] == length // 2 for key, length in wanted.items()) == len(wanted) // 3
    for key, length in wanted.items():
        assert b"v" * 100 not in member.ask(b"mg %s v\r\n" % key), length


@dataclass
class Ground:
    """Where a run takes place."""

    folder: Path

    @property
    def medium(self) -> Path:
        return self.folder / "m"  # short: a control socket's path has 108 bytes

    def start(self) -> "subprocess.Popen[str]":
        changes = [f"--set={name}={value}" for name, value in TINY.items()]
        command = [sys.executable, "-m", "penstock.bench.shared", *changes]
        places = ["--out", self.folder / "out", "--medium", self.medium]
        return subprocess.Popen([*command, *places], stdout=PIPE, stderr=PIPE, text=True)

    def namespaces(self) -> set[str]:
        """The network namespaces of what runs."""
        pids = measure.marked_processes(f"{MARK}={self.medium}/")
        return namespaces_of(pids) - namespaces_of([os.getpid()])

    def assert_nothing_is_left(self, namespaces: set[str]) -> None:
        assert_nothing_left(self.medium)
        assert registry.entries() == []
        assert namespaces & namespaces_of(procfs.pids()) == set()


def namespaces_of(pids: Iterable[int]) -> set[str]:
    found: set[str] = set()
    for pid in pids:
        # It has ended, or is another user's.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch, medium: Path) -> Iterator[Ground]:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(medium / "state"))
    ground = Ground(medium)
    ground.medium.mkdir()
    yield ground
    registry.clean()  # what a test that failed has left


def one_row(rows: list[dict[str, Any]], *words: str) -> dict[str, Any]:
    (row,) = (row for row in rows if all(word in row["name"] for word in words))
    return row


@pytest.mark.slow
def test_a_run_counts_each_byte_once_and_leaves_nothing(ground: Ground) -> None:
    process = ground.start()
    namespaces: set[str] = set()
    wait_until(lambda: namespaces.update(ground.namespaces()) or len(namespaces) > 4, "it runs")
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    ground.assert_nothing_is_left(namespaces)
    results = Path(output.splitlines()[-1])
    assert {path.name for path in results.iterdir()} == {"report.md", "result.json"}
    assert (results / "report.md").read_text() in output
    rows = json.loads((results / "result.json").read_text())["rows"]
    bytes_rows = [row for row in rows if row["name"].startswith("bytes that left the bucket")]
    at_once, without, *others = bytes_rows
    assert [row["figure"] for row in others] == [1.0, 0, 0, 1.0]
    for row, gets in ((at_once, FILES), (without, 4 * FILES)):
        # On a busy machine a slow request is hedged by a second one.
        assert gets <= row["detail"]["gets"] <= gets + row["detail"]["hedges"]
        assert row["detail"]["errors"] == 0
    failures = [row for row in rows if row["name"].startswith("errors and wrong bytes")]
    assert len(failures) == 8
    assert [row["figure"] for row in failures] == [0] * 8, [row["detail"] for row in failures]
    assert one_row(failures, "garbage")["detail"]["damaged"] > 0
    for harm in ("killed", "stopped", "cut off"):
        assert one_row(failures, harm)["detail"]["failures"] > 0, harm
    assert one_row(failures, "nothing happens")["detail"]["failures"] == 0
    for size, size_bytes in (("small", FILES * SMALL_BYTES), ("large", 2 * 9 * MIB)):
        name = f"cold epoch of the second node, {size} files, of a bare"
        epochs = [row for row in rows if row["name"].startswith(name)]
        shared = [row["detail"]["samples"][0]["shared_bytes"] for row in epochs]
        assert shared == [size_bytes, size_bytes]


@pytest.mark.slow
def test_what_a_killed_run_leaves_is_removed_by_clean(ground: Ground) -> None:
    process = ground.start()
    wait_until(lambda: measure.mounts_below(ground.medium), "it mounts")
    namespaces = ground.namespaces()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(namespaces) > 4
    (cleaned,) = registry.clean()
    assert cleaned.left is None
    ground.assert_nothing_is_left(namespaces)


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing(ground: Ground) -> None:
    process = ground.start()
    wait_until(lambda: measure.mounts_below(ground.medium), "it mounts")
    namespaces = ground.namespaces()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    ground.assert_nothing_is_left(namespaces)
