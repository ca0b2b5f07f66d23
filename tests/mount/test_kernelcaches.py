"""What tests make the kernel forget of one mount, it forgets, and nothing of another."""

from pathlib import Path

from tests.support.kernelcaches import drop_pages, forget
from tests.support.mounts import Mount, Mounter
from tests.support.page_counts import locked_pages
from tests.support.trees import read_raw, write_tree

FILES = {f"folder/{n}": bytes([n]) * 5000 for n in range(9)}


def read_all(mount: Mount) -> None:
    for name, data in FILES.items():
        assert read_raw(mount.path / name) == data


def test_the_kernel_asks_again_for_what_it_was_made_to_forget_and_for_no_more(
    tmp_path: Path, mounter: Mounter
) -> None:
    write_tree(tmp_path / "set", FILES)
    mount, other = (mounter(f"file://{tmp_path}/set", "--mode", "pagecache") for _ in range(2))
    read_all(mount)
    read_all(other)

    def drop_all() -> None:
        drop_pages([mount.path / name for name in (*FILES, "folder/unknown", "unknown/0")])

    def forget_all() -> None:
        forget(mount.path)

    with locked_pages(other.path / name for name in FILES):
        before = other.stats()["requests"]
        for act, asked in ((drop_all, {"READ"}), (forget_all, {"LOOKUP", "READ"})):
            assert all("FORGET" in name for name in mount.messages_while(act))
            sent = mount.messages_while(lambda: read_all(mount))
            assert {name for name in sent if "FORGET" not in name} == asked
            assert sent["READ"] == len(FILES)
        read_all(other)
        assert other.stats()["requests"] == before
