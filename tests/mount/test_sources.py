"""Every kind of source, mounted for real: S3 and what speaks it, WebDAV, manifests, folders."""

import gzip
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from tests.support.mounts import Mounter, penstock
from tests.support.rclone import FILES, rclone_serves
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import read_tree, write_tree

# -- S3 and what speaks it --------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "variables"),
    [("oss", ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_ENDPOINT")),
     ("bos", ("BOS_ACCESS_KEY_ID", "BOS_SECRET_ACCESS_KEY", "BOS_ENDPOINT"))],
)  # fmt: skip
def test_oss_and_bos_take_their_own_variables_before_those_of_aws(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch, scheme: str,
    variables: tuple[str, str, str],
) -> None:  # fmt: skip
    write_tree(s3.bucket(f"of-{scheme}"), FILES)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFANOTHERCLOUD00")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of another cloud")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name, value in zip(variables, (ACCESS_KEY, SECRET_KEY, s3.endpoint), strict=True):
        monkeypatch.setenv(name, value)
    assert read_tree(mounter(f"{scheme}://of-{scheme}").path) == FILES


@contextmanager
def proxy_to(address: str) -> Iterator[tuple[str, list[str]]]:
    """A web proxy that sends everything to one server, and notes what it was asked for."""
    asked: list[str] = []

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path.split("?")[0])
            target = urlsplit(self.path)._replace(scheme="", netloc="").geturl()
            server = http.client.HTTPConnection(address, timeout=30)
            server.request("GET", target, headers=dict(self.headers))
            answer = server.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())
            server.close()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


STYLES = {
    "oss": ("http://oss-cn-hangzhou.aliyuncs.com", "http://styled.oss-cn-hangzhou.aliyuncs.com/"),
    "bos": ("http://s3.bj.bcebos.com", "http://s3.bj.bcebos.com/styled/"),
}


@pytest.mark.parametrize("scheme", STYLES)
def test_each_cloud_is_addressed_in_its_own_style(
    mounter: Mounter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    write_tree(tmp_path / "s3/styled", {name: FILES[name] for name in ("a.txt", "deep/er/f 1.txt")})
    endpoint, address = STYLES[scheme]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    options = (f"--force-path-style={str(scheme == 'bos').lower()}", "--auth-key")
    with (
        rclone_serves("s3", tmp_path / "s3", *options, f"{ACCESS_KEY},{SECRET_KEY}") as server,
        proxy_to(server) as (proxy, asked),
    ):
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, proxy)
        mount = mounter(f"{scheme}://styled/deep", "--endpoint", endpoint)
        found = read_tree(mount.path)
        mount.umount()
    assert found == {"er/f 1.txt": FILES["deep/er/f 1.txt"]}
    assert asked
    assert all(f"{path}/".startswith(address) for path in asked)


def test_a_profile_gives_keys_and_the_endpoint(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    write_tree(s3.bucket("of-profile"), FILES)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_PROFILE", "training")
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    settings = f"region = eu-central-1\nendpoint_url = {s3.endpoint}\n"
    write_tree(state / ".aws", {
        "credentials": f"[default]\naws_access_key_id = no\n\n[training]\n{keys}".encode(),
        "config": f"[profile training]\n{settings}".encode(),
    })  # fmt: skip
    assert read_tree(mounter("s3://of-profile").path) == FILES


def test_the_endpoint_can_be_a_variable_of_aws(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(s3.bucket("of-variable"), FILES)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert read_tree(mounter("s3://of-variable").path) == FILES


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_public_bucket_is_read_without_keys(
    mounter: Mounter, tmp_path: Path, scheme: str
) -> None:
    small = {name: data for name, data in FILES.items() if len(data) < 100}
    write_tree(tmp_path / "s3/public", small)
    with rclone_serves("s3", tmp_path / "s3") as server:
        mount = mounter(f"{scheme}://public", "--anonymous", "--endpoint", f"http://{server}")
        assert read_tree(mount.path) == small
        mount.umount()


def test_two_endpoints_are_two_sources(mounter: Mounter, tmp_path: Path) -> None:
    """The same bucket's name at another address is other data, in catalog and cache."""
    write_tree(tmp_path, {"one/b/file": b"first", "two/b/file": b"other"})
    for folder, expected in (("one", b"first"), ("two", b"other")):
        with rclone_serves("s3", tmp_path / folder) as server:
            address = ("--endpoint", f"http://{server}", "--refresh", "never")
            mount = mounter("s3://b", "--anonymous", *address)
            assert (mount.path / "file").read_bytes() == expected
            mount.umount()


NO_CREDENTIALS = {
    "gs://bucket": ({}, "GOOGLE_"),
    "gs://bucket/a": ({"GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent/key.json"}, "GOOGLE_"),
    "gs://bucket/b": ({"GOOGLE_SERVICE_ACCOUNT": "/nonexistent/key.json"}, "GOOGLE_"),
    "az://container": ({}, "AZURE_STORAGE_ACCOUNT"),
    "az://container/a": ({"AZURE_STORAGE_ACCOUNT_NAME": "account"}, "AZURE_"),
    "az://container/b": (
        {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "no key!"},
        "AZURE_STORAGE_ACCOUNT_KEY",
    ),
}


@pytest.mark.parametrize("source", NO_CREDENTIALS)
def test_google_and_azure_without_credentials_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    variables, hinted = NO_CREDENTIALS[source]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "http_proxy"):  # a machine that is no cloud's: no metadata server
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    result = penstock("mount", source, tmp_path, "-b", "--no-cache")
    assert result.returncode == 2, result.stderr
    assert [line.split(" ")[0] for line in result.stderr.splitlines()] == ["penstock:", "hint:"]
    assert hinted in result.stderr.splitlines()[1]
    assert "AWS_" not in result.stderr


# -- web servers ------------------------------------------------------------------------


def test_a_folder_of_a_webdav_server_is_listed_and_read(mounter: Mounter, tmp_path: Path) -> None:
    write_tree(tmp_path / "dav", FILES)
    with rclone_serves("webdav", tmp_path / "dav") as server:
        mount = mounter(f"http://{server}/deep/")
        found = read_tree(mount.path)
        mount.umount()
    assert found == read_tree(tmp_path / "dav/deep")


def test_a_plain_web_server_is_read_by_a_manifest(mounter: Mounter, tmp_path: Path) -> None:
    """A packed one, of JSON lines; the next tests have plain ones."""
    write_tree(tmp_path / "web/sub", FILES)
    lines = [json.dumps({"path": name, "size": len(data)}) for name, data in FILES.items()]
    manifest = tmp_path / "manifest.json.gz"
    manifest.write_bytes(gzip.compress(("# the data set\n\n" + "\n".join(lines)).encode()))
    with rclone_serves("http", tmp_path / "web") as server:
        mount = mounter(f"http://{server}/sub", "--manifest", manifest, "--block-size", "1MiB")
        assert read_tree(mount.path) == FILES
        assert mount.stats()["store_bytes"] == sum(map(len, FILES.values()))
        mount.umount()


def test_a_manifest_that_is_wrong_gives_errors_and_never_wrong_bytes(
    mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "web", FILES)
    manifest = tmp_path / "manifest"
    manifest.write_text("4 a.txt\n9 zero\n7 gone\n5 deep/er/f 1.txt\n")
    with rclone_serves("http", tmp_path / "web") as server:
        mount = mounter(f"http://{server}", "--manifest", manifest)
        for name in ("a.txt", "zero", "gone"):
            with pytest.raises(OSError, match=r"Stale|No such file"):
                (mount.path / name).read_bytes()
        assert (mount.path / "deep/er/f 1.txt").read_bytes() == b"deep\n"
        mount.umount()
        manifest.write_text("6 a.txt\n")
        again = mounter(f"http://{server}", "--manifest", manifest, "--refresh", "never")
        assert os.listdir(again.path) == ["a.txt"], "another manifest is another listing"
        assert (again.path / "a.txt").read_bytes() == b"hello\n"
        again.umount()
