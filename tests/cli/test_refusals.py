"""Commands that cannot work: exit 2 or 3, one line that says what is wrong, and a hint."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.workspace import find_program, free_port
from penstock.daemon.mount_lifecycle import Progress
from penstock.daemon.server import Server
from penstock.settings import MountSettings
from tests.support import refusals
from tests.support.faults import Answer, End
from tests.support.liar import serve_liar
from tests.support.mounts import Mounter, penstock, penstock_process
from tests.support.refusals import check_refusal, one_refusal
from tests.support.s3 import S3
from tests.support.trees import read_tree, write_tree

SECRET = "hunter2hunter2"


Refuse = Callable[..., str]


@pytest.fixture
def source(tmp_path: Path) -> str:
    write_tree(tmp_path / "source", {"file": b"1"})
    return f"file://{tmp_path}/source"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0")


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """refuse(source, *options, says=…) runs `penstock mount -b` and checks how it is rejected.

    This process prepares the server, which finds the mistake: processes would take 0.5 s each.
    """
    monkeypatch.setattr("penstock.cli.mount.start_supervisor", _prepare)
    monkeypatch.setattr("penstock.daemon.server.yield_to_readers", lambda: None)
    empty = tmp_path / "mnt"
    empty.mkdir()

    def check(source: str, *options: str | Path, mountpoint: Path = empty, **expected: Any) -> str:
        if not any(str(option).startswith(("--cache", "--tier")) for option in options):
            options += ("--cache-dir", tmp_path / "cache")
        command = ["mount", source, str(mountpoint), "-b", *map(str, options)]
        return one_refusal(command, **expected)

    return check


def _prepare(settings: MountSettings, *, progress: Progress) -> list[str]:
    server = Server(settings)
    logging.disable()  # a server in the background logs to a file
    try:
        server.prepare(progress)
    finally:
        logging.disable(logging.NOTSET)
        for part in {"_cache", "_tree"} & vars(server).keys():
            getattr(server, part).close()
    pytest.fail("the mount was accepted")


@pytest.mark.parametrize("way", [(), ("-b",)], ids=["foreground", "background"])
@pytest.mark.parametrize("mistake", ["option", "store"])
def test_a_rejected_mount_exits_with_its_code_and_leaves_nothing_behind(
    s3: S3, tmp_path: Path, way: tuple[str, ...], mistake: str
) -> None:
    """The command itself rejects an unknown option; only the server learns of the store."""
    place = tmp_path / "mnt"
    place.mkdir()
    command = ["mount", "s3://bucket", place, *way, "--cache-dir", tmp_path / "cache"]
    try:
        if mistake == "option":
            result = penstock_process(*command, "--chache-dir", "/x")
            assert "--cache-dir" in check_refusal(result, says="--chache-dir")
        else:
            result = penstock_process(*command, "--endpoint", f"http://127.0.0.1:{free_port()}")
            check_refusal(result, says="s3://bucket", code=3)
        assert refusals.mounts_below(tmp_path) == []
        assert refusals.processes_that_name(place) == []
    finally:
        refusals.clear_away(place)


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_missing_bucket_or_prefix_and_a_wrong_key_are_rejected(
    s3: S3, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    bucket = s3.bucket(f"wrong-{wrong[4:10].lower()}")
    write_tree(bucket, {"file": b"1"})
    for missing in ("s3://no-such-bucket", f"{bucket.source}/not-there"):
        refuse(missing, "--endpoint", s3.endpoint, says=missing)
    monkeypatch.setenv(wrong, "AKIAWRONGWRONGWRONG0")
    output = refuse(bucket.source, "--endpoint", s3.endpoint, says=f"{bucket.source}.*[Dd]enied")
    assert "AWS_ACCESS_KEY_ID" in output.splitlines()[1]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in output


def test_missing_keys_and_an_unknown_profile_are_rejected(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = ("s3://any", "--endpoint", "http://127.0.0.1:1")
    assert "--anonymous" in refuse(*nowhere, says="s3://any: no credentials")
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this")
    refuse(*nowhere, says="nobody-has-this")


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
# What comes for every request: (status, body), and words of the hint.
ANSWERS = {
    "no permission to list": (403, DENIED, "list"),
    "a web page": (200, b"<!doctype html><html><body>It works!</body></html>", "--endpoint"),
    "page not found": (404, b"<html><body>Not here</body></html>", "--endpoint"),
    "method not allowed": (405, b"<html><body>Not so</body></html>", "--endpoint"),
    "an empty answer": (200, b"", "--endpoint"),
}


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("prefix", ["", "/folder"])  # they are listed by different requests
@pytest.mark.parametrize("name", ANSWERS)
def test_an_endpoint_that_cannot_list_is_rejected(refuse: Refuse, name: str, prefix: str) -> None:
    with serve_liar() as server:
        *server.always, hint = ANSWERS[name]
        output = refuse(f"s3://bucket{prefix}", "--endpoint", server.endpoint, says="s3://bucket")
        assert hint in output.splitlines()[1]
        if name in ("a web page", "method not allowed"):  # a web server that cannot list
            refuse(f"{server.endpoint}/folder", says=f"{server.endpoint}/folder")


@pytest.mark.usefixtures("keys")
def test_an_endpoint_that_redirects_to_another_host_is_rejected(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-of-the-caller")
    with serve_liar() as server, serve_liar() as other:
        moved = Answer(307, "Moved", (("Location", f"{other.endpoint}/bucket"),), b"").head()
        server.lie = lambda _liar, _request, _truth: (moved, End.KEEP)
        there = other.endpoint.removeprefix("http://")
        for source in (("s3://bucket", "--endpoint", server.endpoint), (f"{server.endpoint}/x",)):
            output = refuse(*source, says=f"{source[0]}.* redirects to {there}")
            assert "--endpoint" in output.splitlines()[1]
        assert other.connections == 0


@pytest.mark.usefixtures("keys")
def test_unreachable_storage_is_rejected(refuse: Refuse) -> None:
    soon = ("--deadline", "1s")
    for endpoint in ("http://127.0.0.1:1", "http://no-such-host.invalid:9000"):
        refuse("s3://bucket/x", "--endpoint", endpoint, *soon, says="s3://bucket", code=3)
    refuse("http://127.0.0.1:1/x", *soon, says="http://127.0.0.1:1/x", code=3)


def test_a_missing_or_nonempty_folder_or_a_file_is_rejected_as_mount_point(
    refuse: Refuse, source: str, tmp_path: Path
) -> None:
    refuse(f"file://{tmp_path}/none", says=f"file://{tmp_path}/none")
    output = refuse(source, mountpoint=tmp_path / "none", says=f"{tmp_path}/none does not exist")
    assert f"mkdir -p {tmp_path}/none" in output
    write_tree(tmp_path / "full", {"precious": b"1"})
    file = tmp_path / "full/precious"
    refuse(source, mountpoint=file, says=f"{file} is not a directory")
    refuse(source, "--cache-dir", file, says=f"cache directory {file}")
    refuse(source, mountpoint=tmp_path / "full", says=f"{tmp_path}/full is not empty")
    assert file.read_bytes() == b"1"
    refuse(source, "--cache-dir", tmp_path / "mnt/cache", says="cache directory .*/mnt/cache")
    assert os.listdir(tmp_path / "mnt") == []


def test_a_penstock_mount_is_rejected_as_mount_point_and_as_cache_directory(
    source: str, tmp_path: Path, mounter: Mounter, request: pytest.FixtureRequest
) -> None:
    write_tree(tmp_path / "source", {"folder/file": b"1"})
    place = mounter(source).path
    refuse: Refuse = request.getfixturevalue("refuse")  # from here on no mount is made
    refuse(source, mountpoint=place, says=f"{place} is already a mount point")
    refuse(source, "--cache-dir", place / "cache", says=f"cache directory {place}/cache")
    for verb in ("umount", "stats", "refresh"):
        one_refusal([verb, f"{place}/folder"], says=f"{place}/folder is not mounted")
    assert penstock("stats", place).returncode == 0
    assert (place / "folder/file").read_bytes() == b"1"


@contextmanager
def memory_file_system(place: Path, options: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    subprocess.run(command, check=True, timeout=30)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=30)


def test_a_full_or_read_only_disk_is_rejected(refuse: Refuse, source: str, tmp_path: Path) -> None:
    with memory_file_system(tmp_path / "small", "size=1m") as place:
        refuse(source, mountpoint=place, says=f"{place} is already a mount point")
        with pytest.raises(OSError, match="No space left"):
            (place / "filler").write_bytes(bytes(2 << 20))
        refuse(source, "--cache-dir", place / "new", says=f"cache directory {place}")
        refuse(source, "--tier", f"MEM:{place}:1MiB", says=f"cache directory {place}")
    with memory_file_system(tmp_path / "few", "size=10m,nr_inodes=20") as place:
        refuse(source, "--cache-dir", place, says=f"cache directory {place}")
    with memory_file_system(tmp_path / "ro", "ro,size=8m") as place:
        for option in (["--cache-dir", f"{place}/new"], ["--tier", f"SSD:{place}:1MiB"]):
            refuse(source, *option, says=f"cache directory {place}.*Read-only")


def test_a_fuse_disk_is_rejected_for_a_cache(refuse: Refuse, source: str, tmp_path: Path) -> None:
    place, behind = tmp_path / "füse with blank", tmp_path / "source"
    place.mkdir()
    rclone = [find_program("rclone"), "mount", "--daemon", "--config", "/dev/null"]
    subprocess.run([*rclone, str(behind), str(place)], check=True, timeout=60)
    try:
        refuse(source, "--cache-dir", place / "cache", says=f"{place}/cache is on FUSE itself")
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


MISTYPED = {
    "--mode pagecahce": "pagecahce",
    "--refresh soon": "--refresh.*soon",
    "--deadline soon": "--deadline.*soon",
    "--deadline 0": "--deadline.*1s",
    "--deadline 1d": "--deadline.*1h",
    "--block-size 8 MiB": "MiB",
    "--block-size 100": "--block-size",
    "--buffer-size 1MiB": "--buffer-size",
    "--prefetch -1": "--prefetch",
    "--threads 0": "--threads",
    "--dir-mode 0999": "--dir-mode",
    "--uid me": "--uid.*me",
    "--uid 99999999999": "--uid",
    "--attr-cache long": "--attr-cache.*long",
    "--entry-cache -1": "--entry-cache",
    "--cache-size -1": "--cache-size|quota",
    "--cache-size many": "--cache-size",
    "--cache-dir {} --cache-size 99PiB": "quota",
    "--tier TAPE:/tape:1GiB": "--tier TAPE:/tape:1GiB",
    "--tier SSD:{}/t:0": "{}/t.*quota",
    "--tier SSD:{}/t:99PiB": "{}/t.*quota",
    "--no-cache --cache-size 1GiB": "--no-cache and --cache-size",
    "--tier SSD:/x:1GiB --cache-dir /y": "--tier and --cache-dir",
    "--endpoint http://127.0.0.1:1": "--endpoint",
    "--manifest /x": "--manifest",
    "-o kernel_cache,ro,entry_timout=7200": "-o entry_timout=7200",
}


@pytest.mark.parametrize("options", MISTYPED)
def test_a_mistake_in_an_option_is_rejected(
    refuse: Refuse, source: str, tmp_path: Path, options: str
) -> None:
    says = MISTYPED[options].format(tmp_path)
    refuse(source, *options.format(tmp_path).split(), says=says)


def test_a_mistyped_kernel_option_gets_a_suggestion(refuse: Refuse, source: str) -> None:
    assert "kernel_cache" in refuse(source, "-o", "kernel_cach", says="kernel_cach")


@pytest.mark.usefixtures("keys")
def test_an_invalid_source_or_endpoint_or_one_with_keys_is_rejected(refuse: Refuse) -> None:
    for bad, says in (  # tests/store/test_contract.py has more of them
        ("", "source"),
        ("bucket", "bucket"),
        ("s3:///x", "s3"),
        (f"s3://AKIA:{SECRET}@bucket/x", "cred"),
        (f"https://me:{SECRET}@host/x", "cred"),
        (f"http://{SECRET}@host/x", "credentials do not belong"),
    ):
        assert SECRET not in refuse(bad, says=says)
    for bad in ("http://", "ftp://host", f"http://me:{SECRET}@127.0.0.1:1"):
        assert SECRET not in refuse("s3://b", "--endpoint", bad, says="endpoint|credentials")


def test_a_missing_or_wrong_manifest_is_rejected(refuse: Refuse, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest"
    address = "http://127.0.0.1:1/data"
    refuse("s3://bucket", "--manifest", manifest, says="--manifest.*s3://")
    refuse(address, "--manifest", manifest, says=f"--manifest {manifest}")
    for line in ("five file", "12", "-3 file", '{"path": "x"}', '{"path": "x", "size": -1}', "{"):
        manifest.write_text(f"# sizes and paths\n\n12 good\n{line}\n")
        refuse(address, "--manifest", manifest, says=f"{manifest}:4")


@pytest.mark.parametrize(
    "command", ["umount {} --lazy", "stats {}/none", "refresh {}", "doctor {}"]
)
def test_a_path_without_a_mount_is_rejected(tmp_path: Path, command: str) -> None:
    one_refusal(command.format(tmp_path).split(), says=f"{tmp_path}.* not mounted by Penstock")
    one_refusal(["umount", "/proc"], says="/proc is not mounted by Penstock")  # it is another's
    assert Path("/proc/self").exists()


@pytest.mark.parametrize("verb", ["ls", "clear", "verify"])
def test_a_folder_that_is_not_a_cache_is_left_alone(tmp_path: Path, verb: str) -> None:
    files = {"file": b"precious", "notes/index.sqlite": b"my notes, not a database" * 100}
    write_tree(tmp_path, files)
    for place in ("", "/none", "/file", "/notes"):
        one_refusal(["cache", verb, "--cache-dir", f"{tmp_path}{place}"], says=f"{tmp_path}{place}")
    assert read_tree(tmp_path) == files


@pytest.mark.parametrize(
    "command",
    [
        "mout s3://b /x",
        "mount s3://b",
        "umount",
        "doctor /x /y",
        "cache list",
        "stats /x -o yaml",
        "--verbose",
    ],
)
def test_an_unknown_command_is_rejected(command: str) -> None:
    output = one_refusal(command.split(), says=".")
    assert "--help" in output.splitlines()[1]


INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
sys.argv = ["penstock", "--version"]
from penstock.__main__ import main
main()
"""


def test_ctrl_c_during_startup_exits_silently() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_container_that_is_stopped_while_it_starts_ends_at_once() -> None:
    # The first process of its PID namespace, as in a container.
    first = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    stopped = INTERRUPTED.replace("SIGINT", "SIGTERM")
    done = subprocess.run(
        [*first, sys.executable, "-c", stopped],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")
