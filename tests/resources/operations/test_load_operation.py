"""DataLoad, over real mounts."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.daemon.registry import find_note
from penstock.errors import PenstockError, UsageError
from penstock.units import format_size
from tests.support.mounts import Mount, Mounter
from tests.support.operation_work import Bench, kill_when, operation, run, start
from tests.support.page_counts import assert_kept
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.shared_mounts import Shared, sharing
from tests.support.trees import write_tree

SIZE = 64 * 1024
FILES = {f"{number}.bin": random.Random(number).randbytes(SIZE) for number in range(10)}
BUCKET = "load-operation"
# Each test loads folders that no other one does: they share a mount.
FOLDERS = ("whole", "slash", "pattern", "other", "pages", "killed")


def load(folder: Path, mount: Mount, *targets: str, **more: Any) -> Bench:
    spec: dict[str, Any] = {"dataset": {"name": "set"}, **more}
    if targets:
        spec["target"] = [{"path": path} for path in targets]
    datasets = {"default/set": (str(mount.path), [])}
    return Bench(operation("DataLoad", spec), str(folder / "work"), datasets)


@pytest.fixture(scope="module")
def shared(_s3_server: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder, bucket = tmp_path_factory.mktemp("load"), _s3_server.bucket(BUCKET)
    for name in FOLDERS:
        write_tree(bucket / name, FILES)
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with sharing(folder, keys) as mounter:
        options = ("--endpoint", _s3_server.endpoint, "--refresh", "never")
        yield Shared(mounter(bucket.source, *options), folder / "state")


@pytest.fixture
def mount(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Mount:
    return shared.enter(monkeypatch)


@pytest.fixture
def mount_alone(s3: S3, shared: Shared, mounter: Mounter) -> Mounter:
    """Mounts a source that holds FILES alone."""
    source = f"s3://{BUCKET}/other"
    return lambda *options: mounter(source, "--endpoint", s3.endpoint, *options)


def test_all_of_it_is_cached_once_and_progress_is_told(
    mount_alone: Mounter, tmp_path: Path
) -> None:
    mount = mount_alone("--refresh", "never")
    infos, work = run(load(tmp_path, mount))
    assert mount.gets() == len(FILES)
    assert infos["Cached"] == "10 of 10 files, 640.0 KiB of 640.0 KiB (100%)"
    last = work.reports[-1]
    assert (last["files"], last["ofFiles"]) == (10, 10)
    assert (last["bytes"], last["ofBytes"]) == (10 * SIZE, 10 * SIZE)
    for targets in ((), ("/",), ("/1.bin", "/")):
        infos, _ = run(load(tmp_path, mount, *targets))
        assert infos["Cached"].startswith("10 of 10 files")
        assert infos["Fetched"] == "0 files, 0 B"
    assert mount.gets() == len(FILES)


@pytest.mark.parametrize(
    "targets", [("/whole",), ("/slash/",), ("pattern/[0-8].bin", "/pattern/8.bin", "pattern/9.bin")]
)
def test_only_the_targets_are_loaded(
    mount: Mount, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    before = mount.gets()
    infos, _ = run(load(tmp_path, mount, *targets))
    assert mount.gets() - before == 10
    assert infos["Cached"].startswith("10 of 10 files")


def test_a_path_that_is_not_there_fails_with_its_name(mount: Mount, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="whoel") as failed:
        run(load(tmp_path, mount, "/whoel"))
    assert "whole" in str(failed.value.hint)


def test_with_metadata_the_bucket_is_listed_first(s3: S3, mount: Mount, tmp_path: Path) -> None:
    write_tree(s3.open(BUCKET), {"new/one.bin": b"new"})
    before = mount.gets()
    run(load(tmp_path, mount, options={"loadMetadataOnly": "true"}))
    assert [path.name for path in (mount.path / "new").iterdir()] == ["one.bin"]
    assert mount.gets() == before
    write_tree(s3.open(BUCKET), {"new/two.bin": b"new"})
    infos, _ = run(load(tmp_path, mount, "/new", loadMetadata=True))
    assert infos["Cached"].startswith("2 of 2 files")


@pytest.mark.counts_pages
def test_into_the_page_cache_too(mount: Mount, tmp_path: Path) -> None:
    infos, _ = run(load(tmp_path, mount, "/pages", options={"loadMemorydata": "true"}))
    if infos["PageCache"] != format_size(10 * SIZE):
        assert_kept((mount.path / "pages").iterdir())
    assert infos["PageCache"] == format_size(10 * SIZE)


def test_killed_in_the_middle_it_goes_on_where_it_was(mount: Mount, tmp_path: Path) -> None:
    before = mount.gets()
    options = {"rate": "128KiB/s", "concurrency": "2"}
    kill_when(
        load(tmp_path, mount, "/killed", options=options), lambda told: told["bytes"] >= 2 * SIZE
    )
    assert 2 <= mount.gets() - before < len(FILES)
    run(load(tmp_path, mount, "/killed"))
    # What was on its way when it was killed may have been dropped.
    assert len(FILES) <= mount.gets() - before <= len(FILES) + 2


def test_a_server_that_is_killed_in_the_middle_is_no_failure(
    mount_alone: Mounter, tmp_path: Path
) -> None:
    mount = mount_alone()
    with start(load(tmp_path, mount, options={"rate": "512KiB/s"})) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = find_note(mount.path).server_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        said = process.stdout.read()
    assert process.returncode == 0
    assert find_note(mount.path).server_pid != pid
    assert '"done": {"Cached": "10 of 10 files' in said


def test_what_does_not_fit_is_told(mount_alone: Mounter, tmp_path: Path) -> None:
    mount = mount_alone("--cache-size", "512KiB")
    infos, work = run(load(tmp_path, mount))
    assert [reason for reason, _ in work.told] == ["DoesNotFit"]
    assert not infos["Cached"].endswith("(100%)")


@pytest.mark.parametrize(
    ("options", "what"),
    [({"rat": "1MiB/s"}, "rat is not an option"), ({"concurrency": "0"}, "concurrency: '0'"),
     ({"order": "random"}, "order: 'random'")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, str], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        run(load(tmp_path, Mount(Path("/nowhere")), options=options))
