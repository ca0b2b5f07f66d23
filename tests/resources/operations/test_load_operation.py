"""DataLoad, over a real mount."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.daemon.registry import find_note
from penstock.errors import PenstockError, UsageError
from tests.conftest import S3, Mount, Mounter, write_tree
from tests.resources.operations.working import Bench, kill_when, run, start

SIZE = 64 * 1024
FILES = {
    f"{folder}/{number:02}.bin": random.Random(number).randbytes(SIZE)
    for folder in ("train", "val")
    for number in range(10)
}


def load(folder: Path, mount: Mount, *targets: str, **more: Any) -> Bench:
    spec: dict[str, Any] = {"dataset": {"name": "set"}, **more}
    if targets:
        spec["target"] = [{"path": path} for path in targets]
    return Bench(
        {"apiVersion": "data.fluid.io/v1alpha1", "kind": "DataLoad",
         "metadata": {"name": "load"}, "spec": spec},
        str(folder / "work"), {"default/set": (str(mount.path), [])},
    )  # fmt: skip


@pytest.fixture
def bucket(s3: S3, request: pytest.FixtureRequest) -> Path:
    bucket = s3.bucket(f"load{len(list(s3.folder.iterdir()))}")
    write_tree(bucket, FILES)
    return bucket


@pytest.fixture
def mount(s3: S3, bucket: Path, mounter: Mounter) -> Mount:
    return mounter(f"s3://{bucket.name}", "--endpoint", s3.endpoint, "--refresh", "never")


@pytest.mark.parametrize("targets", [(), ("/",), ("/train", "/")])
def test_all_of_it_is_cached_and_progress_is_told(
    mount: Mount, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    infos, work = run(load(tmp_path, mount, *targets))
    assert mount.gets() == len(FILES)
    assert infos["Cached"].startswith("20 of 20 files")
    assert infos["Cached"].endswith("(100%)")
    last = work.reports[-1]
    assert (last["files"], last["ofFiles"]) == (20, 20)
    assert (last["bytes"], last["ofBytes"]) == (20 * SIZE, 20 * SIZE)


@pytest.mark.parametrize("targets", [("/train",), ("/train/",), ("train/*.bin", "/train/00.bin")])
def test_parts_of_it_can_be_meant(mount: Mount, tmp_path: Path, targets: tuple[str, ...]) -> None:
    infos, _ = run(load(tmp_path, mount, *targets))
    assert mount.gets() == 10
    assert infos["Cached"].startswith("10 of 10 files")


def test_the_second_time_nothing_is_fetched(mount: Mount, tmp_path: Path) -> None:
    run(load(tmp_path, mount))
    infos, _ = run(load(tmp_path, mount))
    assert mount.gets() == len(FILES)
    assert infos["Fetched"] == "0 files, 0 B"


def test_a_path_that_is_not_there_fails_with_its_name(mount: Mount, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="trian") as failed:
        run(load(tmp_path, mount, "/trian"))
    assert "train" in str(failed.value.hint)


def test_with_metadata_the_bucket_is_listed_first(
    mount: Mount, bucket: Path, tmp_path: Path
) -> None:
    write_tree(bucket, {"test/new.bin": b"new"})
    infos, _ = run(load(tmp_path, mount, "/test", loadMetadata=True))
    assert infos["Cached"].startswith("1 of 1 files")


def test_names_alone_can_be_loaded(mount: Mount, bucket: Path, tmp_path: Path) -> None:
    write_tree(bucket, {"test/new.bin": b"new"})
    run(load(tmp_path, mount, options={"loadMetadataOnly": "true"}))
    assert (mount.path / "test").is_dir()
    assert mount.gets() == 0


def test_into_the_page_cache_too(mount: Mount, tmp_path: Path) -> None:
    infos, _ = run(load(tmp_path, mount, options={"loadMemorydata": "true"}))
    assert infos["PageCache"] == "1.2 MiB"


def test_killed_in_the_middle_it_goes_on_where_it_was(mount: Mount, tmp_path: Path) -> None:
    slow = load(tmp_path, mount, options={"rate": "256KiB/s", "concurrency": "2"})
    kill_when(start(slow), lambda told: told["bytes"] >= 3 * SIZE)
    early = mount.gets()
    assert 3 <= early < len(FILES)
    run(load(tmp_path, mount))
    # What was on its way when it was killed may have been let go of.
    assert len(FILES) <= mount.gets() <= len(FILES) + 2


def test_a_server_that_is_killed_in_the_middle_is_no_failure(mount: Mount, tmp_path: Path) -> None:
    process = start(load(tmp_path, mount, options={"rate": "512KiB/s"}))
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        pid = find_note(mount.path).server_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        said = process.stdout.read()
    assert process.wait(60) == 0
    assert '"done": {"Cached": "20 of 20 files' in said


def test_what_does_not_fit_is_told(s3: S3, bucket: Path, mounter: Mounter, tmp_path: Path) -> None:
    mount = mounter(
        f"s3://{bucket.name}", "--endpoint", s3.endpoint, "--cache-dir", tmp_path / "small",
        "--cache-size", "512KiB",
    )  # fmt: skip
    infos, work = run(load(tmp_path, mount))
    assert [reason for reason, _ in work.told] == ["DoesNotFit"]
    assert not infos["Cached"].endswith("(100%)")


@pytest.mark.parametrize(
    ("options", "what"),
    [({"rat": "1MiB/s"}, "rat is not an option"), ({"concurrency": "0"}, "1 to 256|concurrency"),
     ({"order": "random"}, "order")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, str], what: str
) -> None:
    bench = load(tmp_path, Mount(Path("/nowhere")), options=options)
    with pytest.raises(UsageError, match=what):
        run(bench)
