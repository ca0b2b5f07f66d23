"""An epoch reads every byte once, however many read, and a short file is never a good figure."""

import math
from pathlib import Path

import pytest

from penstock.bench.bareclient import get_epoch
from penstock.bench.dataset import Dataset, Entry, make_large, make_small
from penstock.bench.readers import list_files, read_epoch
from penstock.bench.s3server import S3Server, create_bucket, far_s3, upload
from penstock.bench.workspace import BenchError, Workspace
from penstock.units import MIB


@pytest.mark.parametrize(("readers", "passes"), [(1, 1), (50, 1), (2, 3)])
def test_every_file_is_read_once_in_a_pass(
    workspace: Workspace, small: Dataset, readers: int, passes: int
) -> None:
    epoch = read_epoch(workspace, small.root, small.entries, readers=readers, seed=1, passes=passes)
    assert (epoch.files, epoch.size_bytes) == (passes * 20, passes * small.size_bytes)
    assert epoch.seconds > 0
    assert epoch.cpu_s > 0


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_an_error_that_names_it(
    workspace: Workspace, small: Dataset, change: int
) -> None:
    victim = small.entries[17]
    entries = [*small.entries[:17], Entry(victim.path, victim.size_bytes + change)]
    with pytest.raises(BenchError, match=victim.path):
        read_epoch(workspace, small.root, entries, readers=2, seed=1)


def test_a_missing_file_is_an_error(workspace: Workspace, small: Dataset) -> None:
    entries = [*small.entries, Entry("no/such", 5)]
    with pytest.raises(BenchError, match="No such file"):
        read_epoch(workspace, small.root, entries, readers=2, seed=1)


def test_a_listing_has_every_file_and_no_hidden_one(tmp_path: Path) -> None:
    small = make_small(tmp_path, 3)
    (small.root / ".control").touch()
    assert sorted(list_files(small.root)) == sorted(entry.path for entry in small.entries)


def test_the_bare_client_gets_every_object_once(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    epoch = get_epoch(workspace, server, small.name, small.entries, readers=8)
    assert (epoch.files, epoch.size_bytes) == (20, small.size_bytes)


def test_the_bare_client_gets_large_objects_by_blocks(
    workspace: Workspace, server: S3Server
) -> None:
    large = make_large(workspace.folder / "large", 2, size_bytes=3 * MIB + 1)
    create_bucket(server, "bench-large")
    upload(server, "bench-large", large.root)
    with far_s3(workspace, server, latency_s=0, bytes_per_s=math.inf) as far:
        epoch = get_epoch(
            workspace, far.server, "bench-large", large.entries,
            readers=1, block_bytes=MIB, parallel=3,
        )  # fmt: skip
        counted = far.counters()
    assert (epoch.files, epoch.size_bytes) == (2, large.size_bytes)
    assert (counted.gets, counted.get_bytes) == (2 * 4, large.size_bytes)


def test_the_bare_client_does_not_hide_a_missing_object(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    with pytest.raises(BenchError, match="bare-client"):
        get_epoch(workspace, server, small.name, [Entry("no/such", 5)], readers=1)
