"""Storage, mount points and cache directories that cannot work: one line, and a hint."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from penstock.bench.programs import find_program, free_port
from tests.support.mounts import Mounter, penstock, penstock_process
from tests.support.refusals import (
    Refuse,
    check_refusal,
    clear_away,
    mounts_below,
    one_refusal,
    processes_that_name,
)
from tests.support.s3 import S3
from tests.support.trees import write_tree

# -- in processes of their own ----------------------------------------------------------


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
            check_refusal(result, says="--chache-dir")
        else:
            result = penstock_process(*command, "--endpoint", f"http://127.0.0.1:{free_port()}")
            check_refusal(result, says="s3://bucket", code=3)
        assert mounts_below(tmp_path) == []
        assert processes_that_name(place) == []
    finally:
        clear_away(place)


# -- storage ----------------------------------------------------------------------------


def test_a_bucket_that_is_missing(s3: S3, refuse: Refuse) -> None:
    refuse("s3://no-such-bucket", "--endpoint", s3.endpoint, says="s3://no-such-bucket")


def test_a_prefix_under_which_nothing_lies(s3: S3, refuse: Refuse) -> None:
    write_tree(s3.bucket("bad-prefix"), {"there/file": b"1"})
    refuse("s3://bad-prefix/not-there", "--endpoint", s3.endpoint, says="s3://bad-prefix/not-there")


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_wrong_key(s3: S3, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    bucket = s3.bucket(f"wrong-{wrong[4:10].lower()}")
    write_tree(bucket, {"file": b"1"})
    monkeypatch.setenv(wrong, "AKIAWRONGWRONGWRONG0")
    said = refuse(bucket.source, "--endpoint", s3.endpoint, says=f"{bucket.source}.*[Dd]enied")
    assert "AWS_ACCESS_KEY_ID" in said.splitlines()[1]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in said


def test_no_keys_at_all(refuse: Refuse) -> None:
    said = refuse("s3://any", "--endpoint", "http://127.0.0.1:1", says="s3://any: no credentials")
    assert "--anonymous" in said


def test_a_profile_that_does_not_exist(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this")
    refuse("s3://any", "--endpoint", "http://127.0.0.1:1", says="nobody-has-this")


@contextmanager
def web_server(status: int, kind: str, body: bytes) -> Iterator[str]:
    """A server that gives every request the same answer."""

    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PROPFIND = answer

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("prefix", ["", "/folder"])
def test_no_permission_to_list(refuse: Refuse, prefix: str) -> None:
    with web_server(403, "application/xml", DENIED) as endpoint:
        source = f"s3://private{prefix}"
        said = refuse(source, "--endpoint", endpoint, says="s3://private.*[Dd]enied")
        assert "list" in said.splitlines()[1]


PAGES = {
    "a web page": (200, "text/html", b"<!doctype html><html><body>It works!</body></html>"),
    "a web page of well-formed XHTML": (200, "text/html", b"<html><body>It works!</body></html>"),
    "page not found": (404, "text/html", b"<html><body>Not here</body></html>"),
    "method not allowed": (405, "text/html", b"<html><body>Not so</body></html>"),
    "an empty answer": (200, "text/plain", b""),
}


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("prefix", ["", "/folder"])  # they are listed by different requests
@pytest.mark.parametrize("page", PAGES)
def test_an_endpoint_that_is_not_s3(refuse: Refuse, page: str, prefix: str) -> None:
    with web_server(*PAGES[page]) as endpoint:
        said = refuse(f"s3://bucket{prefix}", "--endpoint", endpoint, says="s3://bucket")
        assert "--endpoint" in said.splitlines()[1]


@pytest.mark.parametrize("page", ["a web page", "page not found", "method not allowed"])
def test_a_web_server_that_cannot_list(refuse: Refuse, page: str) -> None:
    with web_server(*PAGES[page]) as endpoint:
        refuse(f"{endpoint}/folder", says=f"{endpoint}/folder")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid:9000"])
def test_an_endpoint_that_cannot_be_reached(refuse: Refuse, endpoint: str) -> None:
    source = "s3://bucket/folder"
    refuse(source, "--endpoint", endpoint, "--deadline", "1s", says="s3://bucket", code=3)


def test_a_web_server_where_nobody_listens(refuse: Refuse) -> None:
    refuse("http://127.0.0.1:1/x", "--deadline", "1s", says="http://127.0.0.1:1/x", code=3)


def test_a_folder_that_does_not_exist(refuse: Refuse, tmp_path: Path) -> None:
    refuse(f"file://{tmp_path}/none", says=f"file://{tmp_path}/none")


# -- mount points and cache directories -------------------------------------------------


def test_a_mount_point_that_is_missing(refuse: Refuse, source: str, tmp_path: Path) -> None:
    said = refuse(source, mountpoint=tmp_path / "none", says=f"{tmp_path}/none does not exist")
    assert f"mkdir -p {tmp_path}/none" in said


def test_a_mount_point_that_is_a_file(refuse: Refuse, source: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refuse(source, mountpoint=tmp_path / "file", says=f"{tmp_path}/file is not a directory")


def test_a_mount_point_that_is_not_empty(refuse: Refuse, source: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "full", {"precious": b"1"})
    refuse(source, mountpoint=tmp_path / "full", says=f"{tmp_path}/full is not empty")
    assert (tmp_path / "full/precious").read_bytes() == b"1"


def test_a_mount_of_ours_is_no_mount_point_and_no_place_for_a_cache(
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
def memory_file_system(place: Path, options: str = "size=1m") -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    subprocess.run(command, check=True, timeout=30)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=30)


def test_a_mount_point_where_something_else_is_mounted(
    refuse: Refuse, source: str, tmp_path: Path
) -> None:
    with memory_file_system(tmp_path / "other") as place:
        refuse(source, mountpoint=place, says=f"{place} is already a mount point")


@pytest.mark.parametrize("option", ["--cache-dir {}/new", "--tier MEM:{}:1MiB"])
def test_a_cache_directory_that_is_full(
    refuse: Refuse, source: str, tmp_path: Path, option: str
) -> None:
    with memory_file_system(tmp_path / "small") as place:
        with pytest.raises(OSError, match="No space left"):
            (place / "filler").write_bytes(bytes(2 << 20))
        refuse(source, *option.format(place).split(), says=f"cache directory {place}")


def test_a_cache_directory_without_room_for_another_file(
    refuse: Refuse, source: str, tmp_path: Path
) -> None:
    with memory_file_system(tmp_path / "few", "size=10m,nr_inodes=20") as place:
        refuse(source, "--cache-dir", place, says=f"cache directory {place}")


def test_a_cache_directory_that_is_read_only(refuse: Refuse, source: str, tmp_path: Path) -> None:
    with memory_file_system(tmp_path / "ro", "ro,size=8m") as place:
        for option in (["--cache-dir", f"{place}/new"], ["--tier", f"SSD:{place}:1MiB"]):
            refuse(source, *option, says=f"cache directory {place}.*Read-only")


def test_a_cache_directory_on_fuse(refuse: Refuse, source: str, tmp_path: Path) -> None:
    place = tmp_path / "füse with blank"  # which the table of mounts escapes
    for folder in (place, tmp_path / "behind"):
        folder.mkdir()
    subprocess.run(
        [find_program("rclone"), "mount", str(tmp_path / "behind"), str(place), "--daemon",
         "--vfs-cache-mode", "off", "--config", "/dev/null"], check=True, timeout=60,
    )  # fmt: skip
    try:
        refuse(source, "--cache-dir", place / "cache", says=f"{place}/cache is on FUSE itself")
        refuse(source, "--tier", f"SSD:{place}:1GiB", says=f"{place} is on FUSE itself")
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_a_cache_directory_below_its_own_mount_point(
    refuse: Refuse, source: str, tmp_path: Path
) -> None:
    refuse(source, "--cache-dir", tmp_path / "mnt/cache", says="cache directory .*/mnt/cache")
    assert os.listdir(tmp_path / "mnt") == []


def test_a_cache_directory_that_is_a_file(refuse: Refuse, source: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refuse(source, "--cache-dir", tmp_path / "file", says=f"cache directory {tmp_path}/file")
