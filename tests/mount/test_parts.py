"""One mount of several sources, each at its path, with its own keys; changed while it is read."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.workspace import free_port
from penstock.cache.tier import TierSpec
from penstock.daemon.control_socket import ask
from penstock.daemon.mount_lifecycle import change_in_place, start_supervisor, stop_mount
from penstock.daemon.mount_registry import control_socket, find_note
from penstock.mounttable import find_mount
from penstock.settings import MountSettings, Part, needs_new_mount
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys
from penstock.store.source import parse_source
from tests.support.kills import reading
from tests.support.mounts import Mount, penstock
from tests.support.rclone import rclone_serves
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

ONE = {"a/1": b"one a 1", "a/2": b"one a 2", "b": b"one b"}


@dataclass
class Served:
    """An S3 server of its own over a folder, with a key of its own."""

    name: str
    port: int

    @property
    def keys(self) -> Keys:
        return Keys(f"AKIAKEYOF{self.name.upper()}", f"a-secret-of-bucket-{self.name}")

    def part(self, path: str, prefix: str = "", deadline_s: float = 6) -> Part:
        endpoint = f"http://127.0.0.1:{self.port}"
        options = StoreOptions(endpoint, keys=self.keys, deadline_s=deadline_s)
        return Part(path, parse_source(f"s3://bucket/{prefix}"), options)


@contextmanager
def serving(folder: Path, name: str, port: int | None = None) -> Iterator[Served]:
    served = Served(name, port or free_port())
    key = f"--auth-key={served.keys.access_key_id},{served.keys.secret_access_key}"
    with rclone_serves("s3", folder, key, "--vfs-cache-mode=off", port=served.port):
        yield served


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    write_tree(tmp_path / "one/bucket", ONE)
    with serving(tmp_path / "one", "one") as found:
        yield found


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Served]:
    write_tree(tmp_path / "two/bucket", {"p/x": b"two p x", "p/d/y": b"two p d y"})
    with serving(tmp_path / "two", "two") as found:
        yield found


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


def kill_the_server(parts: Parts) -> None:
    pid = parts.stats()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: parts.stats()["pid"] != pid, "another server took over")


def test_each_source_is_at_its_path_and_is_read_with_its_own_keys(
    parts: Parts, one: Served, two: Served, tmp_path: Path
) -> None:
    write_tree(tmp_path / "here", {"h": b"here"})
    parts.mount(one.part("imagenet"), two.part("deep/er", "p"), local(tmp_path / "here", "l"))
    assert read_tree(parts.path) == {
        "imagenet/a/1": b"one a 1",
        "imagenet/a/2": b"one a 2",
        "imagenet/b": b"one b",
        "deep/er/x": b"two p x",
        "deep/er/d/y": b"two p d y",
        "l/h": b"here",
    }
    assert parts.listed[-1] == (6, 39)
    # A reader has its bytes before the cache has them.
    wait_until(lambda: parts.brief()["cached_bytes"] == 39, "all is noted")
    stats = parts.stats()
    assert [
        (part["path"], part["files"], part["bytes"], part["cached_bytes"])
        for part in stats["parts"]
    ] == [("imagenet", 3, 19, 19), ("deep/er", 2, 16, 16), ("l", 1, 4, 4)]
    brief = parts.brief()
    assert (brief["files"], brief["bytes"], brief["capacity_bytes"]) == (6, 39, 64 << 20)
    assert brief["last_change"] == stats["last_change"]
    assert (brief["mode"], brief["refresh_error"]) == ("pagecache", None)


def test_a_source_is_added_and_removed_while_another_is_read(
    parts: Parts, one: Served, two: Served
) -> None:
    parts.mount(one.part("one"))
    inode = (parts.path / "one/a/1").stat().st_ino
    with reading(parts.path / "one", ONE, readers=2, seed=1) as readers:
        parts.change(one.part("one"), two.part("two", "p"))
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
        readers.wait_for_more()
    assert (parts.path / "one/a/1").stat().st_ino == inode
    assert [part["path"] for part in parts.stats()["parts"]] == ["one"]
    assert find_note(parts.path).source == "s3://bucket"


def test_the_next_server_lists_a_new_source_after_a_kill(
    parts: Parts, one: Served, tmp_path: Path
) -> None:
    parts.mount(one.part("one"))
    late = Served("one", free_port())
    with (
        reading(parts.path / "one", ONE, readers=1, seed=1) as readers,
        socket.create_server(("127.0.0.1", late.port)) as silent,
    ):
        silent.settimeout(60)
        parts.change(one.part("one"), late.part("late", deadline_s=60))
        held: list[socket.socket] = []
        for _ in range(2):
            held.append(silent.accept()[0])  # it is being listed, and gets no answer
            assert os.listdir(parts.path / "late") == []
            kill_the_server(parts)
        for connection in held:
            connection.close()
        silent.close()
        with serving(tmp_path / "one", "one", late.port):
            wait_until(lambda: os.listdir(parts.path / "late") == ["a", "b"], "it was listed")
            assert (parts.path / "late/b").read_bytes() == b"one b"
        readers.wait_for_more()


def test_a_source_that_cannot_be_listed_does_not_affect_the_others(
    parts: Parts, one: Served, tmp_path: Path
) -> None:
    write_tree(tmp_path / "here", {"h": b"here"})
    here = local(tmp_path / "here", "here")
    with serving(tmp_path / "one", "two") as other:
        parts.mount(other.part("gone"), here)
    # Its server is away by now.
    write_tree(tmp_path / "here", {"new": b"new"})
    refreshed = penstock("refresh", parts.path)
    assert (refreshed.returncode, "gone: s3://bucket" in refreshed.stderr) == (3, True)
    assert refreshed.stdout.startswith("5 files, ")
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


def test_a_new_source_at_the_same_path_never_shows_bytes_of_the_old_one(
    parts: Parts, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        write_tree(tmp_path / name, {"same": name.encode()})
    parts.mount(local(tmp_path / "old", "at"))
    assert read_tree(parts.path) == {"at/same": b"old"}
    for name in ("new", "old"):
        parts.change(local(tmp_path / name, "at"))
        expected = {"at/same": name.encode()}
        wait_until(lambda: read_tree(parts.path) == expected, f"the {name} one is shown")  # noqa: B023


def test_options_fixed_at_mount_time_need_a_remount(parts: Parts, tmp_path: Path) -> None:
    settings = replace(parts.settings, parts=(local(tmp_path, "l"),))
    assert needs_new_mount(settings, settings) == []
    assert needs_new_mount(settings, replace(settings, parts=())) == []
    assert needs_new_mount(settings, replace(settings, mode="passthrough", title="t")) == [
        "its title",
        "the mode",
    ]
    unnamed = replace(settings, catalog=None)
    assert needs_new_mount(unnamed, replace(unnamed, parts=())) == ["where the store is"]
