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
    forgets, other = mounts

    def forget_and_read() -> None:
        act(forgets)
        read_all(forgets)
        read_all(other)

    sent = forgets.messages_while(forget_and_read)
    assert {name for name in sent if "FORGET" not in name} == grows
    assert sent["READ"] == len(FILES)
    assert other.messages_while(forget_and_read) == {}
    assert all("FORGET" in name for name in forgets.messages_while(lambda: act(forgets)))
