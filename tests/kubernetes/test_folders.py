"""The node plugin's folders, where the root folder of the node is visible below another path."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from penstock.errors import MountpointError
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node.folders import NodeFolders, resolve_below

KEY = ServedKey("default", "demo")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("folders for another user need root")
    made = tmp_path / "host"
    made.mkdir()
    return made


def test_an_absolute_link_of_the_node_leads_to_a_folder_of_the_node(
    host: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"  # as on the node; also here, where nothing may be made
    disk.mkdir()
    (host / disk.relative_to("/")).mkdir(parents=True)
    (host / "nvme").symlink_to(disk)
    folders = NodeFolders(host / "state", host)
    made = folders.cache(KEY, PurePosixPath("/nvme"))
    assert made == host / disk.relative_to("/") / "penstock" / "default" / "demo"
    assert made.is_dir()
    assert list(disk.iterdir()) == []
    folders.remove(KEY)
    assert not made.parent.parent.exists()
    assert (host / "nvme").is_symlink()


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../../../mnt/a", "mnt/a"),
        ("/mnt/../mnt/./a", "mnt/a"),
        ("below", "disks/below"),
        ("/not/there", "not/there"),
    ],
)
def test_no_link_leads_out_of_the_root_folder_of_the_node(
    host: Path, link: str, expected: str
) -> None:
    (host / "disks").mkdir()
    (host / "disks" / "link").symlink_to(link)
    assert resolve_below(host, PurePosixPath("/disks/link/x")) == host / expected / "x"


def test_links_in_a_circle_are_an_error(host: Path) -> None:
    (host / "a").symlink_to("/b")
    (host / "b").symlink_to("/a")
    with pytest.raises(MountpointError, match="too many levels of links"):
        resolve_below(host, PurePosixPath("/a"))


def test_a_link_in_place_of_a_cache_is_removed_and_not_what_it_leads_to(
    host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = NodeFolders(host / "state", host)
    made = folders.cache(KEY, PurePosixPath("/"))
    (host / "precious").mkdir()
    made.rmdir()
    made.symlink_to(host / "precious")
    folders.remove(KEY)
    assert (host / "precious").is_dir()
    assert "cannot remove" in caplog.text
