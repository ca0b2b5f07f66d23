"""An epoch reads every byte once, however many read, and a short file is never a good figure."""

import pytest

from penstock.bench.bareclient import get_epoch
from penstock.bench.dataset import Dataset, Entry, make_large
from penstock.bench.readers import list_files, read_epoch
from penstock.bench.s3server import S3Server, serve_s3
from penstock.bench.workspace import BenchError, Workspace
from penstock.units import MIB


@pytest.mark.parametrize("readers", [1, 3, 50])
def test_every_file_is_read_once(workspace: Workspace, small: Dataset, readers: int) -> None:
    epoch = read_epoch(workspace, small.root, small.entries, readers=readers, seed=1)
    assert (epoch.files, epoch.size_bytes) == (40, small.size_bytes)
    assert epoch.seconds > 0
    assert epoch.cpu_s >= 0


def test_several_passes_read_every_file_as_often(workspace: Workspace, small: Dataset) -> None:
    epoch = read_epoch(workspace, small.root, small.entries, readers=2, seed=1, passes=3)
    assert (epoch.files, epoch.size_bytes) == (3 * 40, 3 * small.size_bytes)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_an_error_that_names_it(
    workspace: Workspace, small: Dataset, change: int
) -> None:
    victim = small.entries[17]
    entries = [*small.entries[:17], Entry(victim.path, victim.size_bytes + change)]
    with pytest.raises(BenchError, match=victim.path):
        read_epoch(workspace, small.root, entries, readers=2, seed=1)


def test_a_missing_file_is_an_error(workspace: Workspace, small: Dataset) -> None:
    (small.root / small.entries[3].path).unlink()
    with pytest.raises(BenchError, match="No such file"):
        read_epoch(workspace, small.root, small.entries, readers=2, seed=1)


def test_a_listing_has_every_file_and_no_hidden_one(small: Dataset) -> None:
    (small.root / ".control").touch()
    assert sorted(list_files(small.root)) == sorted(entry.path for entry in small.entries)


def test_the_bare_client_gets_every_object_once(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    epoch = get_epoch(workspace, server, "small", small.entries, readers=8)
    assert (epoch.files, epoch.size_bytes) == (40, small.size_bytes)


def test_the_bare_client_gets_large_objects_by_blocks(workspace: Workspace) -> None:
    large = make_large(workspace.folder / "served" / "large", 2, size_bytes=5 * MIB + 1)
    with serve_s3(workspace, workspace.folder / "served") as server:
        epoch = get_epoch(
            workspace, server, "large", large.entries, readers=1, block_bytes=MIB, parallel=3
        )
    assert (epoch.files, epoch.size_bytes) == (2, large.size_bytes)


def test_the_bare_client_does_not_hide_a_missing_object(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    with pytest.raises(BenchError, match="bare-client"):
        get_epoch(workspace, server, "small", [Entry("no/such", 5)], readers=1)
