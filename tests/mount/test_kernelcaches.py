"""What tests make the kernel forget of one mount, it forgets, and nothing of another."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Mount, Mounter, write_tree
from tests.kernelcaches import drop_pages, forget
from tests.mount.test_counts import read_raw

FILES = {f"folder/{n}": bytes([n]) * 5000 for n in range(9)}


def read_all(mount: Mount) -> None:
    for name, data in FILES.items():
        assert read_raw(mount.path / name) == data


def forget_names(mount: Mount) -> None:
    forget(mount.path)


def forget_pages(mount: Mount) -> None:
    drop_pages([mount.path / name for name in (*FILES, "folder/unknown", "unknown/0")])


@pytest.mark.parametrize(
    ("act", "grows"), [(forget_names, {"LOOKUP", "READ"}), (forget_pages, {"READ"})]
)
def test_the_kernel_asks_again_for_what_it_was_made_to_forget_and_for_no_more(
    tmp_path: Path, mounter: Mounter, act: Callable[[Mount], None], grows: set[str]
) -> None:
    write_tree(tmp_path / "set", FILES)
    mounts = [mounter(f"file://{tmp_path}/set", "--mode", "pagecache") for _ in range(2)]
    for mount in mounts:
        read_all(mount)
    before = [mount.stats()["requests"] for mount in mounts]
    act(mounts[0])
    forgotten = mounts[0].stats()["requests"]
    assert {name for name in forgotten if "FORGET" not in name} == set(before[0])
    assert all(forgotten[name] == count for name, count in before[0].items())
    for mount in mounts:
        read_all(mount)
    after = [mount.stats()["requests"] for mount in mounts]
    more = {name for name, count in after[0].items() if count > forgotten.get(name, 0)}
    assert more == grows
    assert after[0]["READ"] == 2 * before[0]["READ"]
    assert after[1] == before[1]
