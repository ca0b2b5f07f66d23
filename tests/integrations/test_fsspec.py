"""`penstock://` is a read-only fsspec file system over the mounts of this machine."""

import errno
import multiprocessing
import os
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.callbacks import Callback

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.errors import NotOnAMount
from penstock.integrations import ordered, plans
from penstock.integrations.fsspec import PenstockFileSystem
from tests.support.loader_places import Place, mount, places, state
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

__all__ = ["mount", "places", "state"]  # fixtures

fs = PenstockFileSystem()
FILES = {f"n{i // 8}/{i:02}.bin": random.Random(i).randbytes(1000 + 7 * i) for i in range(32)}


def test_a_url_is_an_absolute_path_with_any_number_of_slashes(
    mount: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = FILES["n0/00.bin"]
    with fsspec.open(f"penstock://{mount.path}/n0/00.bin") as file:
        assert file.read() == data
    for start in ("penstock:///", "penstock:/", "penstock:////"):
        assert fs.cat(start + str(mount.path / "n0/00.bin").lstrip("/")) == data
    assert fs.cat(mount.path / "n0/00.bin") == data
    monkeypatch.chdir(mount.path)
    assert fs.cat("n0/00.bin") == data


def test_files_and_folders_are_found_as_on_any_file_system(mount: Place) -> None:
    root = str(mount.path)
    assert sorted(fs.ls(root)) == [f"{root}/n{i}" for i in range(4)]
    assert sorted(fs.glob(f"penstock://{root}/n*/*0.bin")) == [
        f"{root}/n{i // 8}/{i:02}.bin" for i in (0, 10, 20, 30)
    ]
    assert sorted(fs.find(root)) == [f"{root}/{name}" for name in sorted(FILES)]
    assert (fs.isdir(f"{root}/n0"), fs.isfile(f"{root}/n0/00.bin")) == (True, True)
    assert not fs.exists(f"{root}/n0/none.bin")
    assert fs.unstrip_protocol(f"{root}/n0") == f"penstock://{root}/n0"
    found = fs.ls(f"{root}/n0", detail=True)
    assert {entry["size"] for entry in found} == {1000 + 7 * i for i in range(8)}
    assert "GETXATTR" not in mount.requests(), "a listing asks for no attributes"


def test_info_and_keys_report_the_version_and_the_cached_share(mount: Place) -> None:
    path = f"{mount.path}/n0/03.bin"
    before, key, checksum = fs.info(path), fs.ukey(path), fs.checksum(path)
    assert before["size"] == len(FILES["n0/03.bin"])
    assert before["ETag"] == os.getxattr(path, "user.penstock.version").decode()
    assert before["cached"] == 0
    assert fs.cat_file(path) == FILES["n0/03.bin"]
    wait_until(lambda: fs.info(path)["cached"] == before["size"])
    assert "ETag" not in fs.info(f"{mount.path}/n0")
    assert (fs.ukey(path), fs.checksum(path)) == (key, checksum)
    (mount.source / "n0/03.bin").write_bytes(b"another")
    os.utime(mount.source / "n0/03.bin", (1, 1_700_000_000))
    mount.mount.refresh()
    assert fs.ukey(path) != key
    assert fs.checksum(path) != checksum
    assert fs.modified(path).timestamp() == 1_700_000_000


def test_a_byte_range_behaves_like_a_slice(mount: Place) -> None:
    path, data = f"{mount.path}/n2/17.bin", FILES["n2/17.bin"]
    for start, end in (
        (None, None),
        (0, 10),
        (100, 400),
        (-50, None),
        (-50, -10),
        (900, 9999),
        (300, 200),
    ):
        assert fs.cat_file(path, start, end) == data[start:end]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The paths of each plan that is opened (and that the mount gets)."""
    lists: list[list[str]] = []

    def open_plan(paths: Sequence[str], **options: Any) -> plans.Plan:
        lists.append(sorted(paths))
        return plans.open_plan(paths, **options)

    monkeypatch.setattr(ordered, "open_plan", open_plan)
    return lists


def test_many_files_cost_one_get_each(mount: Place, planned: list[list[str]]) -> None:
    found = fs.cat(f"penstock://{mount.path}", recursive=True)
    assert found == {f"{mount.path}/{name}": data for name, data in FILES.items()}
    assert mount.gets() == len(FILES)
    assert planned == [sorted(found)]


def test_many_ranges_come_in_order_and_fetch_only_what_was_requested(
    mount: Place, planned: list[list[str]]
) -> None:
    names = random.Random(7).choices(sorted(FILES), k=50)
    starts = [13 * number for number in range(50)]
    found = fs.cat_ranges(
        [f"{mount.path}/{name}" for name in names], starts, [start + 100 for start in starts]
    )
    assert found == [FILES[name][at : at + 100] for name, at in zip(names, starts, strict=True)]
    assert mount.gets() == len(set(names))
    assert planned == [sorted(f"{mount.path}/{name}" for name in names)]
    data, before = random.Random(1).randbytes(3 * DEFAULT_BLOCK_BYTES), mount.store_bytes()
    write_tree(mount.source, {"large.bin": data})
    mount.mount.refresh()
    starts = list(range(2 * DEFAULT_BLOCK_BYTES, 2 * DEFAULT_BLOCK_BYTES + 20_000, 1000))
    paths = [f"{mount.path}/large.bin"] * len(starts)
    found = fs.cat_ranges(paths, starts, [start + 10 for start in starts])
    assert found == [data[start : start + 10] for start in starts]
    assert len(planned) == 1
    assert mount.store_bytes() - before == DEFAULT_BLOCK_BYTES


def test_a_missing_file_is_raised_omitted_or_returned(mount: Place) -> None:
    there, missing = f"{mount.path}/n0/00.bin", f"{mount.path}/n0/none.bin"
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        fs.cat([there, missing])
    assert fs.cat([there, missing], on_error="omit") == {there: FILES["n0/00.bin"]}
    returned = fs.cat([there, missing], on_error="return")
    assert isinstance(returned[missing], FileNotFoundError)
    data, error = fs.cat_ranges([there, missing], 0, 4)
    assert data == FILES["n0/00.bin"][:4]
    assert isinstance(error, FileNotFoundError)


def test_get_copies_a_tree(mount: Place, tmp_path: Path, planned: list[list[str]]) -> None:
    progress = Callback()
    fs.get(f"penstock://{mount.path}/", f"{tmp_path}/copy/", recursive=True, callback=progress)
    copied = {
        str(path.relative_to(tmp_path / "copy")): path.read_bytes()
        for path in (tmp_path / "copy").rglob("*.bin")
    }
    assert copied == FILES
    assert progress.value == progress.size == len(FILES) + 5  # with the folders
    assert mount.gets() == len(FILES)
    assert planned == [[f"{mount.path}/{name}" for name in sorted(FILES)]]


def test_a_path_on_no_mount_is_rejected_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    outside = f"{tmp_path}/plain"
    for refused in (
        lambda: fs.open(outside),
        lambda: fs.info(outside),
        lambda: fs.ls(str(tmp_path)),
        lambda: fs.cat(outside),
        lambda: fs.cat([outside]),
        lambda: fs.get(outside, "/dev/null"),
        lambda: fs.glob(f"{tmp_path}/*"),
        lambda: fs.open("penstock://mnt/x"),
    ):
        with pytest.raises(NotOnAMount, match="is not on a Penstock mount") as caught:
            refused()
        assert "penstock:///" in str(caught.value.hint)
        assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]
    assert not fs.exists(outside)
    assert not fs.isfile(outside)
    assert not fs.isdir(str(tmp_path))


def test_nothing_can_be_written(mount: Place, tmp_path: Path) -> None:
    path, other = f"{mount.path}/n0/00.bin", f"{mount.path}/new"
    (tmp_path / "local").write_bytes(b"x")
    for change in (
        lambda: fs.open(other, "wb"),
        lambda: fs.open(path, "ab"),
        lambda: fs.open(path, "r+b"),
        lambda: fs.open(other, "x"),
        lambda: fs.write_text(other, "x"),
        lambda: fs.pipe(other, b""),
        lambda: fs.touch(other),
        lambda: fs.mkdir(other),
        lambda: fs.makedirs(other),
        lambda: fs.rm(path),
        lambda: fs.rm_file(path),
        lambda: fs.delete(path),
        lambda: fs.rmdir(f"{mount.path}/n0"),
        lambda: fs.mv(path, other),
        lambda: fs.rename(path, other),
        lambda: fs.cp_file(path, other),
        lambda: fs.copy(path, other),
        lambda: fs.link(path, other),
        lambda: fs.symlink(path, other),
        lambda: fs.chmod(path, 0o600),
        lambda: fs.put(str(tmp_path / "local"), other),
        lambda: fs.put_file(str(tmp_path / "local"), other),
    ):
        with pytest.raises(OSError, match="read-only") as caught:
            change()
        assert caught.value.errno == errno.EROFS


def test_the_file_system_can_be_pickled_to_another_process(mount: Place) -> None:
    assert pickle.loads(pickle.dumps(fs)) == fs
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        data = pool.apply(PenstockFileSystem.cat_file, (fs, f"{mount.path}/n3/31.bin"))
    assert data == FILES["n3/31.bin"]
