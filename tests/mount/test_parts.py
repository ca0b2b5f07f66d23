"""One mount of several sources, each at its path, with its own keys; changed while it is read."""

import http.server
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.programs import find_program, free_port
from penstock.cache.tier import TierSpec
from penstock.daemon.change import change_in_place, current_settings, what_needs_restart
from penstock.daemon.control import ask
from penstock.daemon.registry import control_socket, find_note
from penstock.daemon.settings import MountSettings, Part
from penstock.daemon.start import start_supervisor
from penstock.daemon.stop import stop_mount
from penstock.errors import OptionError, PenstockError
from penstock.mounttable import find_mount
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import parse_source
from tests.support.mounts import Mount, penstock
from tests.support.processes import running
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

SECRETS = {name: f"a-secret-of-bucket-{name}" for name in ("one", "two", "rotated")}


@dataclass
class Served:
    """An S3 server of its own over a folder, with one key."""

    folder: Path
    name: str
    endpoint: str

    @property
    def keys(self) -> Keys:
        return Keys(
            access_key_id=f"AKIAKEYOF{self.name.upper()}", secret_access_key=SECRETS[self.name]
        )

    def part(self, path: str, prefix: str = "", keys: Keys | None = None) -> Part:
        source = parse_source(f"s3://bucket/{prefix}")
        options = StoreOptions(self.endpoint, keys=keys or self.keys, deadline_s=3)
        return Part(path, source, options)


@contextmanager
def serving(folder: Path, *names: str) -> Iterator[list[Served]]:
    """Several keys are several users of one server."""
    port = free_port()
    served = [Served(folder, name, f"http://127.0.0.1:{port}") for name in names]
    keys = [f"--auth-key={one.keys.access_key_id},{one.keys.secret_access_key}" for one in served]
    command = [find_program("rclone"), "serve", "s3", folder, *keys, f"--addr=127.0.0.1:{port}",
               "--vfs-cache-mode=off", "--dir-cache-time=0s", "--poll-interval=0"]  # fmt: skip
    with running(command, port):
        yield served


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    write_tree(tmp_path / "one/bucket", {"a/1": b"one a 1", "a/2": b"one a 2", "b": b"one b"})
    with serving(tmp_path / "one", "one") as (found,):
        yield found


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    """One server with two keys: the second is what the first is rotated to."""
    write_tree(tmp_path / "two/bucket", {"p/x": b"two p x", "p/d/y": b"two p d y"})
    with serving(tmp_path / "two", "two", "rotated") as (found, rotated):
        yield found, rotated


def local(folder: Path, path: str) -> Part:
    return Part(path, parse_source(f"file://{folder}"))


@dataclass
class Parts:
    """Mounts parts, as a program does that has them declared."""

    settings: MountSettings
    listed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def path(self) -> Path:
        return self.settings.mountpoint

    def mount(self, *parts: Part) -> list[str]:
        self.settings = replace(self.settings, parts=parts)
        return start_supervisor(
            self.settings, progress=lambda files, size: self.listed.append((files, size))
        )

    def change(self, *parts: Part) -> None:
        change_in_place(self.path, replace(self.settings, parts=parts))
        self.settings = replace(self.settings, parts=parts)

    def stats(self) -> dict[str, Any]:
        return Mount(self.path).stats()

    def brief(self) -> dict[str, Any]:
        return ask(control_socket(self.path), "brief")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    (tmp_path / "mnt").mkdir()
    tier = TierSpec("SSD", (tmp_path / "cache",), 64 << 20)
    settings = MountSettings((), tmp_path / "mnt", catalog="set", tiers=(tier,), refresh_s=None)
    found = Parts(settings)
    try:
        yield found
    finally:
        if find_mount(found.path) is not None:
            stop_mount(found.path)


class Reader:
    """Reads the same files again and again, and remembers what was not as it should be."""

    def __init__(self, folder: Path, expected: dict[str, bytes]) -> None:
        self._folder = folder
        self._expected = expected
        self._over = threading.Event()
        self.rounds = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            for name, data in self._expected.items():
                try:
                    descriptor = os.open(self._folder / name, os.O_RDONLY)
                    try:
                        found = os.pread(descriptor, len(data) + 1, 0)
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(descriptor)
                except OSError as error:
                    self.wrong.append(f"{name}: {error}")
                else:
                    if found != data:
                        self.wrong.append(f"{name}: {found!r}")
            self.rounds += 1

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        rounds = self.rounds
        wait_until(lambda: self.rounds > rounds + 1, "it reads after what happened, too")
        self._over.set()
        self._thread.join()
        assert self.wrong == []


def kill_the_server(parts: Parts) -> None:
    pid = parts.stats()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: parts.stats()["pid"] != pid, "another server took over")


# -- what is shown ------------------------------------------------------------------------


def test_each_source_is_at_its_path_and_is_read_with_its_own_keys(
    parts: Parts, one: Served, two: tuple[Served, Served], tmp_path: Path
) -> None:
    write_tree(tmp_path / "here", {"h": b"here"})
    parts.mount(one.part("imagenet"), two[0].part("deep/er", "p"), local(tmp_path / "here", "l"))
    assert read_tree(parts.path) == {
        "imagenet/a/1": b"one a 1", "imagenet/a/2": b"one a 2", "imagenet/b": b"one b",
        "deep/er/x": b"two p x", "deep/er/d/y": b"two p d y", "l/h": b"here",
    }  # fmt: skip
    assert parts.listed[-1] == (6, 39)
    # A reader has its bytes before the cache has them.
    wait_until(lambda: parts.brief()["cached_bytes"] == 39, "all is noted")
    stats = parts.stats()
    assert [(part["path"], part["files"], part["bytes"], part["cached_bytes"])
            for part in stats["parts"]] == [
        ("imagenet", 3, 19, 19), ("deep/er", 2, 16, 16), ("l", 1, 4, 4)]  # fmt: skip
    brief = parts.brief()
    assert (brief["files"], brief["bytes"], brief["capacity_bytes"]) == (6, 39, 64 << 20)
    assert brief["last_change"] == stats["last_change"]
    assert (brief["mode"], brief["refresh_error"]) == ("pagecache", None)


def test_a_source_inside_another_hides_what_that_one_has_there(
    parts: Parts, one: Served, tmp_path: Path
) -> None:
    write_tree(tmp_path / "over", {"new": b"over"})
    parts.mount(local(tmp_path / "over", "a"), one.part(""))
    assert read_tree(parts.path) == {"a/new": b"over", "b": b"one b"}
    told = ask(control_socket(parts.path), "doctor")
    assert told["hidden"] == [
        ["a/1", "another source is mounted there"], ["a/2", "another source is mounted there"]
    ]  # fmt: skip
    parts.change(one.part(""))
    wait_until(lambda: (parts.path / "a/1").exists(), "what was hidden is seen again")
    assert read_tree(parts.path) == {"a/1": b"one a 1", "a/2": b"one a 2", "b": b"one b"}
    assert ask(control_socket(parts.path), "doctor")["hidden"] == []


def test_a_source_that_cannot_be_listed_at_first_is_told_to_whoever_mounts(
    parts: Parts, one: Served, tmp_path: Path
) -> None:
    wrong = Keys("AKIANOBODY", "a-secret-of-nobody")
    with pytest.raises(PenstockError, match="denied") as refused:
        parts.mount(local(tmp_path, "l"), one.part("o", keys=wrong))
    assert (refused.value.exit_code, find_mount(parts.path)) == (2, None)
    assert "nobody" not in str(refused.value)
    assert "the keys that this source was given" in str(refused.value.hint)


# -- changed in place ---------------------------------------------------------------------


def test_a_source_is_added_and_removed_under_a_reader_of_another(
    parts: Parts, one: Served, two: tuple[Served, Served]
) -> None:
    parts.mount(one.part("one"))
    inode = (parts.path / "one/a/1").stat().st_ino
    expected = {"a/1": b"one a 1", "b": b"one b"}
    with Reader(parts.path / "one", expected):
        parts.change(one.part("one"), two[0].part("two", "p"))
        kill_the_server(parts)
        wait_until(lambda: (parts.path / "two/d/y").exists(), "it was listed")
        assert (parts.path / "two/d/y").read_bytes() == b"two p d y"
        changes = parts.brief()["last_change"]
        with open(parts.path / "two/x", "rb") as held:
            assert held.read() == b"two p x"
            parts.change(one.part("one"))
            kill_the_server(parts)
            wait_until(lambda: os.listdir(parts.path) == ["one"], "it is gone")
            os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            held.seek(0)
            assert held.read() == b"two p x"  # from the cache, which has it
        assert parts.brief()["last_change"] > changes
    assert (parts.path / "one/a/1").stat().st_ino == inode
    assert [part["path"] for part in parts.stats()["parts"]] == ["one"]
    assert find_note(parts.path).source == "s3://bucket"


def test_keys_are_rotated_under_a_reader(
    parts: Parts, one: Served, two: tuple[Served, Served]
) -> None:
    old, new = two
    parts.mount(one.part("one"), old.part("two", "p"))
    with Reader(parts.path, {"one/b": b"one b", "two/x": b"two p x"}):
        listed = parts.stats()["store_requests_by_verb"].get("list", 0)
        parts.change(one.part("one"), new.part("two", "p"))
        kill_the_server(parts)
        write_tree(old.folder / "bucket/p", {"z": b"new"})
        assert penstock("refresh", parts.path).returncode == 0
        assert (parts.path / "two/z").read_bytes() == b"new"
    assert listed > 0
    assert current_settings(parts.path).parts[1].store.keys == new.keys


@contextmanager
def held_up() -> Iterator[tuple[Part, threading.Event, list[str]]]:
    """A source whose listing waits until it is let go; and what its server was asked."""
    let_go, asked = threading.Event(), list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            let_go.wait(60)
            body = b"late" if self.path == "/f" else b"<title>Index of /</title><a href='f'>f</a>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # who asked was killed
                self.wfile.write(body if self.command == "GET" else b"")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            source = parse_source(f"http://127.0.0.1:{server.server_port}")
            yield Part("late", source), let_go, asked
        finally:
            let_go.set()
            server.shutdown()
            thread.join()


def test_a_server_killed_while_it_lists_a_new_source_leaves_that_to_the_next(
    parts: Parts, one: Served
) -> None:
    parts.mount(one.part("one"))
    with held_up() as (late, let_go, asked):
        with Reader(parts.path / "one", {"a/1": b"one a 1", "b": b"one b"}):
            parts.change(one.part("one"), late)
            for _ in range(2):
                wait_until(lambda: bool(asked), "it is being listed")
                assert os.listdir(parts.path / "late") == []
                asked.clear()
                kill_the_server(parts)
            let_go.set()
            wait_until(lambda: os.listdir(parts.path / "late") == ["f"], "it was listed")
        assert (parts.path / "late/f").read_bytes() == b"late"
        stop_mount(parts.path)


def test_a_source_that_cannot_be_listed_costs_the_others_nothing(
    parts: Parts, one: Served, tmp_path: Path
) -> None:
    write_tree(tmp_path / "here", {"h": b"here"})
    here = local(tmp_path / "here", "here")
    with serving(tmp_path / "one", "two") as (other,):
        parts.mount(other.part("gone"), here)
    # Its server is away by now.
    write_tree(tmp_path / "here", {"new": b"new"})
    refreshed = penstock("refresh", parts.path)
    assert (refreshed.returncode, "gone: s3://bucket" in refreshed.stderr) == (3, True)
    assert "2 files" not in refreshed.stdout
    assert sorted(os.listdir(parts.path / "here")) == ["h", "new"]
    assert sorted(os.listdir(parts.path / "gone")) == ["a", "b"]
    assert (parts.path / "gone/b").stat().st_size == 5
    assert parts.brief()["refresh_error"].startswith("gone: s3://bucket")
    # One that is added now, and cannot be listed either, has its directory and says why.
    nobody = replace(other.part("never"), source=parse_source("s3://bucket/never"))
    parts.change(other.part("gone"), here, nobody)
    wait_until(lambda: "never: " in (parts.brief()["refresh_error"] or ""), "it was tried")
    assert sorted(os.listdir(parts.path)) == ["gone", "here", "never"]
    assert sorted(os.listdir(parts.path / "gone")) == ["a", "b"]


def test_what_was_listed_is_there_again_after_an_unmount(
    parts: Parts, one: Served, tmp_path: Path
) -> None:
    write_tree(tmp_path / "here", {"h": b"here"})
    here = local(tmp_path / "here", "here")
    with serving(tmp_path / "one", "two") as (other,):
        parts.mount(other.part("one"), here)
        before = (parts.path / "one/b").stat().st_ino
        stop_mount(parts.path)
    # Mounted from its catalog: that server is away.
    parts.mount(other.part("one"), here)
    assert (parts.path / "one/b").stat().st_ino == before
    stop_mount(parts.path)
    # One more, and one less, while it was not mounted.
    parts.mount(one.part("more"), here)
    assert sorted(read_tree(parts.path)) == ["here/h", "more/a/1", "more/a/2", "more/b"]
    assert parts.brief()["files"] == 4


def test_a_new_source_at_the_same_path_is_not_read_with_the_old_ones_bytes(
    parts: Parts, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        write_tree(tmp_path / name, {"same": name.encode()})
    parts.mount(local(tmp_path / "old", "at"))
    assert (parts.path / "at/same").read_bytes() == b"old"
    parts.change(local(tmp_path / "new", "at"))
    wait_until(lambda: (parts.path / "at/same").exists() and
         (parts.path / "at/same").read_bytes() == b"new", "the new one is shown")  # fmt: skip
    parts.change(local(tmp_path / "old", "at"))
    wait_until(lambda: (parts.path / "at/same").exists() and
         (parts.path / "at/same").read_bytes() == b"old", "and the old one again")  # fmt: skip


def test_a_quota_and_another_tier_are_changed_in_place(parts: Parts, tmp_path: Path) -> None:
    write_tree(tmp_path / "here", {"h": b"here"})
    parts.mount(local(tmp_path / "here", "here"))
    tier = replace(parts.settings.tiers[0], quota_bytes=32 << 20)
    more = TierSpec("HDD", (tmp_path / "more",), 16 << 20)
    change_in_place(parts.path, replace(parts.settings, tiers=(tier, more)))
    assert parts.brief()["capacity_bytes"] == 48 << 20
    assert (parts.path / "here/h").read_bytes() == b"here"


def test_what_the_kernel_was_told_once_needs_a_restart(parts: Parts, tmp_path: Path) -> None:
    settings = replace(parts.settings, parts=(local(tmp_path, "l"),))
    assert what_needs_restart(settings, settings) == []
    assert what_needs_restart(settings, replace(settings, parts=())) == []
    assert what_needs_restart(settings, replace(settings, mode="passthrough", title="t")) == [
        "the mode", "its title"
    ]  # fmt: skip
    unnamed = replace(settings, catalog=None)
    assert what_needs_restart(unnamed, replace(unnamed, parts=())) == ["where the store is"]
    parts.mount(local(tmp_path, "l"))
    with pytest.raises(OptionError, match="the mode cannot change"):
        change_in_place(parts.path, replace(parts.settings, mode="passthrough"))


# -- secrets ------------------------------------------------------------------------------


def test_keys_are_in_no_file_no_argument_no_environment_and_no_text(
    parts: Parts, one: Served, two: tuple[Served, Served], state: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("PENSTOCK_LOG", "DEBUG")
    said = parts.mount(one.part("one"), two[0].part("two", "p"))
    read_tree(parts.path)
    parts.change(one.part("one"), two[1].part("two", "p"))
    stats = parts.stats()
    for pid in (stats["pid"], stats["supervisor_pid"]):
        for name in ("cmdline", "environ"):
            said.append(Path(f"/proc/{pid}/{name}").read_bytes().decode("latin-1"))
    for words in (["stats", "-o", "json"], ["doctor", parts.path], ["refresh", parts.path]):
        result = penstock(*words)
        said += [result.stdout, result.stderr]
    said += [repr(parts.settings), str(current_settings(parts.path))]
    wrong = Keys("AKIANOBODY", "a-secret-of-nobody")
    account = StoreOptions(keys=Keys(service_account_json="a-secret-account"))
    with pytest.raises(PenstockError) as refused:
        parts.change(Part("x", parse_source("gs://bucket"), account))
    said += [str(refused.value), str(refused.value.hint)]
    parts.change(one.part("one", keys=wrong))
    penstock("refresh", parts.path)
    said.append(str(parts.brief()))
    for path in (path for folder in (state, tmp_path / "cache") for path in folder.rglob("*")):
        with suppress(FileNotFoundError):  # the server goes on working there
            said += [path.read_bytes().decode("latin-1")] if path.is_file() else []
    for secret in (*SECRETS.values(), "a-secret-of-nobody", "a-secret-account"):
        assert [text[:200] for text in said if secret in text] == []
