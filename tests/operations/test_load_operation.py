"""What DataLoad adds to `penstock warm`, which tests/mount/test_warm.py tests. Over real mounts."""

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.operations.options import read_load_options
from tests.support.mounts import Mount, Mounter
from tests.support.operation_work import Bench, kill_when, operation, run
from tests.support.s3 import S3
from tests.support.trees import write_tree

SIZE = 64 * 1024
FILES = {f"{number}.bin": random.Random(number).randbytes(SIZE) for number in range(10)}


def load(folder: Path, mount: Mount, *targets: str, **more: Any) -> Bench:
    spec: dict[str, Any] = {"dataset": {"name": "set"}, **more}
    if targets:
        spec["target"] = [{"path": path} for path in targets]
    datasets = {"default/set": (str(mount.path), [])}
    return Bench(operation("DataLoad", spec), str(folder / "work"), datasets)


@pytest.fixture
def mount_bucket(s3: S3, mounter: Mounter) -> Mounter:
    def mount(name: str, *options: str) -> Mount:
        bucket = s3.bucket(name)
        for folder in ("a", "b"):
            write_tree(bucket / folder, FILES)
        return mounter(bucket.source, "--endpoint", s3.endpoint, *options)

    return mount


def test_the_selected_files_are_cached_once(s3: S3, mount_bucket: Mounter, tmp_path: Path) -> None:
    mount = mount_bucket("load-all", "--refresh", "never")
    infos, _ = run(load(tmp_path, mount, "a/[0-3].bin", "/a/3.bin", "a/4.bin"))
    assert (mount.gets(), infos["Cached"].startswith("5 of 5 files")) == (5, True)
    infos, _ = run(load(tmp_path, mount, "/a/"))
    assert (mount.gets(), infos["Cached"].startswith("10 of 10 files")) == (10, True)
    infos, work = run(load(tmp_path, mount))
    assert (mount.gets(), infos["Cached"]) == (20, "20 of 20 files, 1.2 MiB of 1.2 MiB (100%)")
    last = work.reports[-1]
    assert (last["files"], last["ofFiles"]) == (20, 20)
    assert (last["bytes"], last["ofBytes"]) == (20 * SIZE, 20 * SIZE)
    # What is new in the bucket is seen after a listing that the load asks for.
    write_tree(s3.open("load-all"), {"new/one.bin": b"new"})
    run(load(tmp_path, mount, options={"loadMetadataOnly": "true"}))
    assert [path.name for path in (mount.path / "new").iterdir()] == ["one.bin"]
    assert mount.gets() == 20
    write_tree(s3.open("load-all"), {"new/two.bin": b"new"})
    infos, _ = run(load(tmp_path, mount, "/a/1.bin", "/", loadMetadata=True))
    assert infos["Cached"].startswith("22 of 22 files")
    assert infos["Fetched"] == "2 files, 6 B"


def test_a_killed_operation_resumes_where_it_stopped(mount_bucket: Mounter, tmp_path: Path) -> None:
    mount = mount_bucket("load-killed")
    options = {"rate": "64KiB/s", "concurrency": "2"}
    bench = load(tmp_path, mount, "/a", options=options)
    kill_when(bench, lambda progress: progress["bytes"] >= 2 * SIZE)
    assert 2 <= mount.gets() < len(FILES)
    run(load(tmp_path, mount, "/a"))
    # What was on its way when it was killed may have been dropped.
    assert len(FILES) <= mount.gets() <= len(FILES) + 2


def test_files_that_do_not_fit_are_reported(mount_bucket: Mounter, tmp_path: Path) -> None:
    mount = mount_bucket("load-large", "--cache-size", "512KiB")
    infos, work = run(load(tmp_path, mount))
    assert [reason for reason, _ in work.events] == ["DoesNotFit"]
    assert not infos["Cached"].endswith("(100%)")


def test_impossible_load_options_are_rejected() -> None:
    assert read_load_options({"loadMemorydata": "true"}).page_cache
    for name, value, what in (
        ("rat", "1MiB/s", "rat is not an option"),
        ("concurrency", "0", "concurrency: '0'"),
        ("order", "random", "order: 'random'"),
    ):
        with pytest.raises(UsageError, match=what):
            read_load_options({name: value})
