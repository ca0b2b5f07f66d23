"""Every kind of source, mounted for real: S3 and what speaks it, WebDAV, manifests, folders."""

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import certify
from tests.support.liar import BODY, entry, page, serve_liar
from tests.support.mounts import Mounter, penstock
from tests.support.rclone import FILES, rclone_serves
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import read_tree, write_tree


@pytest.mark.parametrize(
    ("scheme", "variables"),
    [
        ("oss", ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_ENDPOINT")),
        ("bos", ("BOS_ACCESS_KEY_ID", "BOS_SECRET_ACCESS_KEY", "BOS_ENDPOINT")),
    ],
)
def test_oss_and_bos_prefer_their_own_variables_over_those_of_aws(
    s3: S3,
    mounter: Mounter,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    variables: tuple[str, str, str],
) -> None:
    write_tree(s3.bucket(f"of-{scheme}"), FILES)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFANOTHERCLOUD00")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of another cloud")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name, value in zip(variables, (ACCESS_KEY, SECRET_KEY, s3.endpoint), strict=True):
        monkeypatch.setenv(name, value)
    assert read_tree(mounter(f"{scheme}://of-{scheme}").path) == FILES


STYLES = {
    "oss": ("http://oss-cn-hangzhou.aliyuncs.com", "http://styled.oss-cn-hangzhou.aliyuncs.com/"),
    "bos": ("http://s3.bj.bcebos.com", "http://s3.bj.bcebos.com/styled/"),
}


@pytest.mark.parametrize("scheme", STYLES)
def test_each_cloud_is_addressed_in_its_own_style(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    endpoint, address = STYLES[scheme]
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serve_liar() as cloud:
        cloud.answer = lambda _: page([entry("deep/file")])
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, cloud.endpoint)
        mount = mounter(f"{scheme}://styled/deep", "--endpoint", endpoint)
        assert read_tree(mount.path) == {"file": BODY}
        mount.umount()
        assert len(cloud.asked) >= 2, "a listing and an object"
        assert all(f"{url.split('?')[0]}/".startswith(address) for url in cloud.asked)


def test_a_profile_supplies_keys_and_endpoint(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    write_tree(s3.bucket("of-profile"), FILES)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_PROFILE", "training")
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    settings = f"region = eu-central-1\nendpoint_url = {s3.endpoint}\n"
    write_tree(
        state / ".aws",
        {
            "credentials": f"[default]\naws_access_key_id = no\n\n[training]\n{keys}".encode(),
            "config": f"[profile training]\n{settings}".encode(),
        },
    )
    assert read_tree(mounter("s3://of-profile").path) == FILES


def test_public_buckets_are_read_without_keys_and_two_endpoints_are_two_sources(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bucket's name at another address is other data, in catalog and cache."""
    write_tree(tmp_path, {"one/b/file": b"first", "two/b/file": b"other", "two/b/ü&": b"odd"})
    for folder, source in (("one", "s3://b"), ("two", "s3://b"), ("two", "gs://b")):
        with rclone_serves("s3", tmp_path / folder) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")
            google = ("--endpoint", f"http://{server}") if source == "gs://b" else ()
            mount = mounter(source, "--anonymous", "--refresh", "never", *google)
            assert read_tree(mount.path) == read_tree(tmp_path / folder / "b")
            mount.umount()


NO_CREDENTIALS = {
    "gs://bucket": ({}, "GOOGLE_"),
    "gs://bucket/b": ({"GOOGLE_SERVICE_ACCOUNT": "/nonexistent/key.json"}, "GOOGLE_"),
    "az://container": ({}, "AZURE_STORAGE_ACCOUNT"),
    "az://container/b": (
        {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "no key!"},
        "AZURE_STORAGE_ACCOUNT_KEY",
    ),
}


@pytest.mark.parametrize("source", NO_CREDENTIALS)
def test_google_and_azure_without_credentials_report_what_is_missing(
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


def test_a_plain_web_server_is_read_through_a_manifest_and_a_wrong_manifest_fails(
    mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "web/sub", FILES)
    lines = [json.dumps({"path": name, "size": len(data)}) for name, data in FILES.items()]
    packed, wrong = tmp_path / "manifest.json.gz", tmp_path / "manifest"
    wrong.write_text("4 a.txt\n9 zero\n7 gone\n5 deep/er/f 1.txt\n")
    with rclone_serves("http", tmp_path / "web") as server:
        source = f"http://{server}/sub"
        mount = mounter(source, "--manifest", wrong)
        for name in ("a.txt", "zero", "gone"):
            with pytest.raises(OSError, match=r"Stale|No such file"):
                (mount.path / name).read_bytes()
        assert (mount.path / "deep/er/f 1.txt").read_bytes() == b"deep\n"
        mount.umount()
        # A newer manifest is another listing, and this one is packed.
        packed.write_bytes(gzip.compress(("# the data set\n\n" + "\n".join(lines)).encode()))
        options = ("--refresh", "never", "--block-size", "1MiB")
        mount = mounter(source, "--manifest", packed, *options)
        assert read_tree(mount.path) == FILES
        mount.umount()


def test_servers_with_a_private_certificate_authority_are_read_over_https(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WebDAV and S3: both trust the authority that SSL_CERT_FILE names."""
    write_tree(tmp_path / "served" / "bucket", FILES)
    certify(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    options = ("--cert", tmp_path / "server.pem", "--key", tmp_path / "server.key")
    with rclone_serves("webdav", tmp_path / "served", *options) as server:
        place = tmp_path / "untrusted"
        place.mkdir()
        result = penstock("mount", f"https://{server}", place, "-b", "--no-cache")
        assert (result.returncode, place.is_mount()) == (3, False)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        mount = mounter(f"https://{server}/bucket/")
        assert read_tree(mount.path) == FILES
        mount.umount()
    auth = ("--auth-key", f"{ACCESS_KEY},{SECRET_KEY}")
    with rclone_serves("s3", tmp_path / "served", *options, *auth) as server:
        mount = mounter("s3://bucket", "--endpoint", f"https://{server}")
        assert read_tree(mount.path) == FILES
        mount.umount()


# Of any bytes, beside those of FILES.
ODD_NAMES = {
    b"caf\xe9.txt": b"latin-1", b"\xff\xfe": b"no text at all", b"line\nbreak.txt": b"newline",
    b"tab\tbell\x07": b"control characters", b"-rf *": b"for shells", b"CASE": b"upper",
    b"case": b"lower", b"x" * 255: b"as long as can be", b"folder \xe9\n/in it": b"deep",
}  # fmt: skip


def test_a_local_folder_is_mounted_unchanged(mounter: Mounter, tmp_path: Path) -> None:
    files = {**FILES, **{os.fsdecode(name): data for name, data in ODD_NAMES.items()}}
    write_tree(tmp_path / "a source", files)
    (tmp_path / "a source/empty folder").mkdir()
    mount = mounter(f"file://{tmp_path}/a%20source")
    assert os.listdir(mount.path / "empty folder") == []
    assert mount.stats()["hidden"] == 0
    for _ in range(2):  # from the store, and from the cache
        assert read_tree(mount.path) == files
    for name in files:
        there, here = (tmp_path / "a source" / name).stat(), (mount.path / name).stat()
        assert (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)
    mount.umount()  # what was cached last is noted by then
    listed = penstock("cache", "ls", "--cache-dir", tmp_path / "cache", "-o", "json").stdout
    assert len(json.loads(listed)) == len(files) - 1, "all but the empty one"


def test_symlinks_are_followed_inside_the_source_and_never_out_of_it(
    mounter: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_tree(tmp_path, {"secret": b"never shown", "source/sub/real": b"real"})
    links = {
        "inside": "sub/real",
        "sub/up and down": "../sub/real",
        "absolute out": tmp_path / "secret",
        "relative out": "../secret",
        "sub/far out": "../../secret",
        "out by folder": "..",
        "chain": "relative out",
        "dangling": "nothing",
        "self": "self",
        "folder": "sub",
        "later": "sub/real",
    }
    for name, target in links.items():
        (source / name).symlink_to(target)
    os.mkfifo(source / "pipe")
    mount = mounter(f"file://{source}", "--refresh", "never")
    assert "9 objects cannot be shown as files" in mount.said
    (source / "later").unlink()
    (source / "later").symlink_to("../secret")
    with pytest.raises(OSError, match="Stale"):
        (mount.path / "later").read_bytes()
    mount.refresh()
    real = {"sub/real": b"real", "inside": b"real", "sub/up and down": b"real"}
    assert read_tree(mount.path) == real
    doctor = json.loads(penstock("doctor", mount.path, "-o", "json").stdout)
    hidden = dict(doctor["hidden"])
    leaving = ("absolute out", "relative out", "sub/far out", "out by folder", "chain", "later")
    assert {hidden.pop(name) for name in leaving} == {"a link that leaves the source"}
    assert hidden.pop("folder") == "a link to a directory"
    assert hidden.pop("pipe") == "neither a file nor a directory"
    assert set(hidden) == {"dangling", "self"}


def test_a_mount_inside_its_own_source_does_not_contain_itself(
    mounter: Mounter, tmp_path: Path
) -> None:
    """The fixture's mount points lie in tmp_path, which is the source here."""
    write_tree(tmp_path, {"data/file": b"1"})
    mount = mounter(f"file://{tmp_path}", "--no-cache")
    for _ in range(2):
        found = subprocess.run(  # a process that can be ended if it goes in circles
            ["find", mount.path, "-type", "f", "-printf", "%P\n"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert found.stdout == "data/file\n"
        mount.refresh()
    assert mount.stats()["files"] == 1
