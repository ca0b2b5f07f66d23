"""Storage, mount points and cache directories that cannot work: told in one line and a hint."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import botocore.session
import pytest

from tests.cli.conftest import Refuse
from tests.conftest import S3, Mounter, free_port, penstock, rclone, running, write_tree

# -- storage ----------------------------------------------------------------------------


def in_both_ways(names: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Each value in one of the two, in turn: how a mount is run and what is wrong with its storage
    know nothing of each other."""
    ways = itertools.cycle(["foreground", "background"])
    rows = [(*(value if isinstance(value, tuple) else (value,)), way)
            for value, way in zip(values, ways, strict=False)]  # fmt: skip
    return pytest.mark.parametrize(f"{names},refuse", rows, indirect=["refuse"])


def test_a_bucket_that_is_missing(s3: S3, refuse: Refuse) -> None:
    refuse("s3://no-such-bucket", "--endpoint", s3.endpoint, says="s3://no-such-bucket")


def test_a_prefix_under_which_nothing_lies(s3: S3, refuse: Refuse) -> None:
    write_tree(s3.folder, {"bad-prefix/there/file": b"1"})
    refuse("s3://bad-prefix/not-there", "--endpoint", s3.endpoint, says="s3://bad-prefix/not-there")


@in_both_ways("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_wrong_key(s3: S3, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    write_tree(s3.folder, {"wrong-keys/file": b"1"})
    monkeypatch.setenv(wrong, "AKIAWRONGWRONGWRONG0")
    said = refuse("s3://wrong-keys", "--endpoint", s3.endpoint, says="s3://wrong-keys.*[Dd]enied")
    assert "AWS_ACCESS_KEY_ID" in said.splitlines()[1]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in said


def test_no_keys_at_all(s3: S3, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    said = refuse("s3://any", "--endpoint", s3.endpoint, says="s3://any: no credentials")
    assert "--anonymous" in said


def test_a_profile_that_does_not_exist(
    s3: S3, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this")
    refuse("s3://any", "--endpoint", s3.endpoint, says="nobody-has-this")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """(endpoint, key, secret) of a user who may read the objects of s3://private, not list them."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    moto = Path(sys.executable).parent / "moto_server"
    # moto checks permissions after this many requests: those that set it up, below.
    command = ["env", "INITIAL_NO_AUTH_ACTION_COUNT=5", str(moto), "-H", "127.0.0.1", "-p"]
    with running([*command, str(port)], port):
        connect = partial(
            botocore.session.get_session().create_client, region_name="us-east-1",
            endpoint_url=endpoint, aws_access_key_id="root", aws_secret_access_key="root",
        )  # fmt: skip
        iam, s3 = connect("iam"), connect("s3")
        iam.create_user(UserName="reader")
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        allow = [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]
        policy = json.dumps({"Version": "2012-10-17", "Statement": allow})
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
        s3.create_bucket(Bucket="private")
        s3.put_object(Bucket="private", Key="file", Body=b"1")
        yield endpoint, key["AccessKeyId"], key["SecretAccessKey"]


@in_both_ways("prefix", ["", "/folder"])
def test_no_permission_to_list(
    private: tuple[str, str, str], refuse: Refuse, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    endpoint, key, secret = private
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    said = refuse(f"s3://private{prefix}", "--endpoint", endpoint, says="s3://private.*[Dd]enied")
    assert "list" in said.splitlines()[1]


@contextmanager
def web_server(status: int, kind: str, body: bytes) -> Iterator[str]:
    """A server that answers everything alike, and knows nothing of S3."""

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
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PAGES = {
    "a web page": (200, "text/html", b"<!doctype html><html><body>It works!</body></html>"),
    "a web page of well-formed XHTML": (200, "text/html", b"<html><body>It works!</body></html>"),
    "page not found": (404, "text/html", b"<html><body>Not here</body></html>"),
    "method not allowed": (405, "text/html", b"<html><body>Not so</body></html>"),
    "an empty answer": (200, "text/plain", b""),
}


# A bucket's root and a prefix in it are asked for in two ways.
@in_both_ways(
    "page,prefix",
    [*((page, "") for page in PAGES), *((page, "/folder") for page in [*PAGES][:3])],
)
def test_an_endpoint_that_is_not_s3(s3: S3, refuse: Refuse, page: str, prefix: str) -> None:
    with web_server(*PAGES[page]) as endpoint:
        said = refuse(f"s3://bucket{prefix}", "--endpoint", endpoint, says="s3://bucket")
        assert "--endpoint" in said.splitlines()[1]


@in_both_ways("page", ["a web page", "page not found", "method not allowed"])
def test_a_web_server_that_cannot_list(refuse: Refuse, page: str) -> None:
    with web_server(*PAGES[page]) as endpoint:
        refuse(f"{endpoint}/folder", says=f"{endpoint}/folder")


def test_an_endpoint_where_nobody_listens(s3: S3, refuse: Refuse) -> None:
    """As patient as it is by itself; those below say that they are not."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    refuse("s3://bucket", "--endpoint", endpoint, says="s3://bucket", code=3)


HASTY = ("--deadline", "1s")


def test_a_prefix_of_an_endpoint_where_nobody_listens(s3: S3, refuse: Refuse) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    refuse("s3://bucket/folder", "--endpoint", endpoint, *HASTY, says="s3://bucket", code=3)


@in_both_ways("prefix", ["", "/folder"])
def test_an_endpoint_whose_name_does_not_resolve(s3: S3, refuse: Refuse, prefix: str) -> None:
    endpoint = "http://no-such-host.invalid:9000"
    refuse(f"s3://bucket{prefix}", "--endpoint", endpoint, *HASTY, says="s3://bucket", code=3)


def test_a_web_server_where_nobody_listens(refuse: Refuse) -> None:
    address = f"http://127.0.0.1:{free_port()}/folder"
    refuse(address, *HASTY, says=address, code=3)


def test_a_folder_that_does_not_exist(refuse: Refuse, tmp_path: Path) -> None:
    refuse(f"file://{tmp_path}/none", says=f"file://{tmp_path}/none")


# -- mount points -----------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> str:
    write_tree(tmp_path / "source", {"file": b"1"})
    return f"file://{tmp_path}/source"


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


def test_a_mount_point_that_is_mounted_already(
    refuse: Refuse, source: str, tmp_path: Path, mounter: Mounter
) -> None:
    place = mounter(source).path
    refuse(source, mountpoint=place, says=f"{place} is already a mount point")
    assert penstock("stats", place).returncode == 0
    assert (place / "file").read_bytes() == b"1"


def test_a_mount_point_where_something_else_is_mounted(
    refuse: Refuse, source: str, tmp_path: Path
) -> None:
    with memory_file_system(tmp_path / "other") as place:
        refuse(source, mountpoint=place, says=f"{place} is already a mount point")


# -- cache directories ------------------------------------------------------------------


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


@pytest.mark.parametrize("option", ["--cache-dir {}/new", "--tier SSD:{}:1MiB"])
def test_a_cache_directory_that_is_read_only(
    refuse: Refuse, source: str, tmp_path: Path, option: str
) -> None:
    with memory_file_system(tmp_path / "ro", "ro,size=8m") as place:
        refuse(source, *option.format(place).split(), says=f"cache directory {place}.*Read-only")


@in_both_ways("name", ["fuse", "füse with blank"])
def test_a_cache_directory_on_fuse(refuse: Refuse, source: str, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    for folder in (place, tmp_path / "behind"):
        folder.mkdir()
    subprocess.run(
        [rclone(), "mount", str(tmp_path / "behind"), str(place), "--daemon",
         "--vfs-cache-mode", "off", "--config", "/dev/null"], check=True, timeout=60,
    )  # fmt: skip
    try:
        refuse(source, "--cache-dir", place / "cache", says=f"{place}/cache is on FUSE itself")
        refuse(source, "--tier", f"SSD:{place}:1GiB", says=f"{place} is on FUSE itself")
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_a_cache_directory_inside_another_mount_of_ours(
    refuse: Refuse, source: str, mounter: Mounter
) -> None:
    place = mounter(source).path
    refuse(source, "--cache-dir", place / "cache", says=f"cache directory {place}/cache")


def test_a_cache_directory_below_its_own_mount_point(
    refuse: Refuse, source: str, tmp_path: Path
) -> None:
    refuse(source, "--cache-dir", tmp_path / "mnt/cache", says="cache directory .*/mnt/cache")
    assert os.listdir(tmp_path / "mnt") == []


def test_a_cache_directory_that_is_a_file(refuse: Refuse, source: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refuse(source, "--cache-dir", tmp_path / "file", says=f"cache directory {tmp_path}/file")
