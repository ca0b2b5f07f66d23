"""A folder of this machine as a source, with all that a folder may hold; and https."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import certify
from tests.support.mounts import Mounter, penstock
from tests.support.rclone import FILES, rclone_serves
from tests.support.s3 import ACCESS_KEY, SECRET_KEY
from tests.support.trees import read_tree, write_tree


def test_a_folder_is_mounted_as_it_is(mounter: Mounter, tmp_path: Path) -> None:
    write_tree(tmp_path / "a source", FILES)
    (tmp_path / "a source/empty folder").mkdir()
    mount = mounter(f"file://{tmp_path}/a source")
    assert read_tree(mount.path) == FILES
    assert os.listdir(mount.path / "empty folder") == []
    for name in FILES:
        there, here = (tmp_path / "a source" / name).stat(), (mount.path / name).stat()
        assert (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)


ODD_NAMES = {
    b"caf\xe9.txt": b"latin-1",
    b"\xff\xfe": b"no text at all",
    b"line\nbreak.txt": b"newline",
    b"tab\tbell\x07": b"control characters",
    b"-rf *": b"for shells",
    b"CASE": b"upper",
    b"case": b"lower",
    b"x" * 255: b"as long as can be",
    b"folder \xe9\n/in it": b"deep",
}


def test_names_of_any_bytes_are_shown_and_read(mounter: Mounter, tmp_path: Path) -> None:
    source = os.fsencode(tmp_path / "a source")
    for name, data in ODD_NAMES.items():
        path = os.path.join(source, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    mount = mounter(f"file://{tmp_path}/a%20source")
    root = os.fsencode(mount.path)
    for _ in range(2):
        found: dict[bytes, bytes] = {}
        for folder, _, names in os.walk(root):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    found[os.path.relpath(os.path.join(folder, name), root)] = file.read()
        assert found == ODD_NAMES
    assert mount.stats()["hidden"] == 0
    listed = json.loads(
        penstock("cache", "ls", "--cache-dir", tmp_path / "cache", "-o", "json").stdout
    )
    assert len(listed) == len(ODD_NAMES)


def test_links_are_followed_inside_the_source_and_never_out_of_it(
    mounter: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_tree(tmp_path, {"secret": b"never shown", "source/sub/real": b"real"})
    (source / "inside").symlink_to("sub/real")
    (source / "sub/up and down").symlink_to("../sub/real")
    (source / "absolute out").symlink_to(tmp_path / "secret")
    (source / "relative out").symlink_to("../secret")
    (source / "sub/far out").symlink_to("../../secret")
    (source / "out by folder").symlink_to("..")
    (source / "chain").symlink_to("relative out")
    (source / "dangling").symlink_to("nothing")
    (source / "self").symlink_to("self")
    (source / "folder").symlink_to("sub")
    os.mkfifo(source / "pipe")
    mount = mounter(f"file://{source}")
    real = {"sub/real": b"real", "inside": b"real", "sub/up and down": b"real"}
    assert read_tree(mount.path) == real
    doctor = json.loads(penstock("doctor", mount.path, "-o", "json").stdout)
    hidden = dict(doctor["hidden"])
    leaving = ("absolute out", "relative out", "sub/far out", "out by folder", "chain")
    assert {hidden.pop(name) for name in leaving} == {"a link that leaves the source"}
    assert hidden.pop("folder") == "a link to a directory"
    assert hidden.pop("pipe") == "neither a file nor a directory"
    assert set(hidden) == {"dangling", "self"}
    assert "9 objects cannot be shown as files" in mount.said


def test_a_link_turned_outwards_after_the_listing_shows_nothing(
    mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path, {"secret": b"secret", "source/real": b"inside"})
    (tmp_path / "source/link").symlink_to("real")
    mount = mounter(f"file://{tmp_path}/source", "--refresh", "never")
    (tmp_path / "source/link").unlink()
    (tmp_path / "source/link").symlink_to("../secret")
    with pytest.raises(OSError, match="Stale"):
        (mount.path / "link").read_bytes()
    assert (mount.path / "real").read_bytes() == b"inside"


def test_a_mount_inside_its_own_source_does_not_contain_itself(
    mounter: Mounter, tmp_path: Path
) -> None:
    """The fixture's mount points lie in tmp_path, which is the source here."""
    write_tree(tmp_path, {"data/file": b"1"})
    mount = mounter(f"file://{tmp_path}", "--no-cache")
    for _ in range(2):
        found = subprocess.run(  # a process that can be ended if it goes in circles
            ["find", mount.path, "-type", "f", "-printf", "%P\n"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        assert found.stdout == "data/file\n"
        mount.refresh()
    assert mount.stats()["files"] == 1


# -- https ------------------------------------------------------------------------------


def test_a_webdav_server_is_read_over_https(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "dav", FILES)
    certify(tmp_path)
    options = ("--cert", tmp_path / "server.pem", "--key", tmp_path / "server.key")
    with rclone_serves("webdav", tmp_path / "dav", *options) as server:
        place = tmp_path / "untrusted"
        place.mkdir()
        result = penstock("mount", f"https://{server}", place, "-b", "--no-cache")
        assert (result.returncode, place.is_mount()) == (3, False)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        mount = mounter(f"https://{server}")
        assert read_tree(mount.path) == FILES
        mount.umount()


def test_an_s3_server_of_an_authority_of_its_own_is_read_over_https(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients ask it, and both are told of the authority."""
    write_tree(tmp_path / "served" / "bucket", FILES)
    certify(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    options = ("--cert", tmp_path / "server.pem", "--key", tmp_path / "server.key", "--auth-key",
               f"{ACCESS_KEY},{SECRET_KEY}")  # fmt: skip
    with rclone_serves("s3", tmp_path / "served", *options) as server:
        mount = mounter("s3://bucket", "--endpoint", f"https://{server}")
        assert read_tree(mount.path) == FILES
        mount.umount()
