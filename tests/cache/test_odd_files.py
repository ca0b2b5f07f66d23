"""What a cache directory finds where its files should be, and is not what it left there."""

import os
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cache import files, index
from penstock.cache.directory import CacheDirectory
from tests.support.cache_samples import BLOCK, Opener, get, put, sample

SIZES = {"small": 300 * 1024, "large": 2 * BLOCK + 7}


def flip(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(200 * 1024)
        byte = stream.read(1)[0]
        stream.seek(200 * 1024)
        stream.write(bytes([byte ^ 1]))


def grow(file: Path) -> None:
    with open(file, "ab") as stream:
        stream.write(b"more")


def link(file: Path) -> None:
    """To a file outside with the very bytes: it must not be followed all the same."""
    target = file.parents[3] / "outside"
    file.rename(target)
    file.symlink_to(target)


def bind(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(file.name)  # a whole path would be too long


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda file: (file.unlink(), make(file))


HARM: dict[str, Callable[[Path], object]] = {
    "flip": flip,
    "remove": Path.unlink,
    "cut": lambda file: os.truncate(file, 100),
    "empty": lambda file: os.truncate(file, 0),
    "grow": grow,
    "folder": replaced_by(Path.mkdir),
    "link": link,
    "dangling_link": replaced_by(lambda file: file.symlink_to(file.parents[3] / "outside")),
    "pipe": replaced_by(os.mkfifo),
    "unix_socket": replaced_by(bind),
}


def outside(cache: CacheDirectory) -> bytes | None:
    file = cache.path.parent / "outside"
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("harm", HARM)
def test_it_is_never_read_never_handed_on_and_filled_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, harm: str, size: int
) -> None:
    cache = opened()
    what, data = sample("object", size)
    assert put(cache, what, data)
    assert cache.complete_file(what) is not None
    monkeypatch.chdir(Path(cache.file(what.digest)).parent)
    HARM[harm](Path(cache.file(what.digest)))
    before = outside(cache)
    assert cache.complete_file(what) is None, "verified before, and changed since"
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        assert get(cache, what, start, stop) in (None, data[start:stop])
    for _ in range(2):  # the first may only clear what is in the way
        put(cache, what, data)
    path = cache.complete_file(what)
    assert path is not None
    assert not path.is_symlink()
    assert path.read_bytes() == data
    assert get(cache, what, 0, 1000) == data[:1000]
    assert cache.used_bytes == size
    assert outside(cache) == before, "nothing was written through a link"


def test_a_folder_with_something_in_it_is_left_alone_and_costs_one_object(opened: Opener) -> None:
    cache = opened()
    what, data = sample("object", 1000)
    folder = Path(cache.file(what.digest))
    folder.mkdir()
    (folder / "mine").touch()
    assert not put(cache, what, data)
    assert get(cache, what, 0, 1000) is None
    assert (folder / "mine").exists()
    assert put(cache, *sample("other", 1000))


@pytest.mark.parametrize("planted", ["objects", "objects/ab"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(
    opened: Opener, tmp_path: Path, planted: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ("ab" * 16)).touch()
    place = tmp_path / "cache" / planted
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    cache = opened()
    for number in range(300):
        put(cache, *sample(f"o{number}", 10))
    cache.sweep(young_s=-100)
    assert os.listdir(elsewhere) == ["ab" * 16], "nothing written there, nothing swept there"


def test_files_of_other_names_are_not_swept(opened: Opener) -> None:
    cache = opened()
    for name in ("README", "ab" * 15, "cd" * 16, "AB" * 16, "zz" * 16):
        (cache.path / "objects" / "ab" / name).touch()
    (cache.path / "objects" / "ab" / ("ab" * 16)).touch()
    assert cache.sweep(young_s=-100) == (1, 0)


def test_what_a_dead_process_left_is_swept_at_once_by_the_next_and_not_by_a_sharer(
    opened: Opener,
) -> None:
    first = opened()
    what, data = sample("torn", 5000)
    files.write_file(first.file(what.digest), what.size_bytes, 0, memoryview(data))
    sharer = opened()
    assert sharer.sweep() == (0, 0), "the first may note it in a moment"
    sharer.close()
    first.abandon()  # as a kill does: the kernel lets go of its locks
    assert opened().sweep() == (1, 0)


def test_rows_whose_files_someone_deleted_are_swept(opened: Opener) -> None:
    cache = opened()
    for number in range(20):
        put(cache, *sample(f"o{number}", 1000))
    cache.index.flush()
    for number in range(15):
        os.unlink(cache.file(sample(f"o{number}", 1000)[0].digest))
    assert cache.sweep() == (0, 15)
    assert cache.used_bytes == 5000


def test_a_count_that_was_asked_for_earlier_never_replaces_a_later_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()
    put(cache, *sample("object", 1000))
    cache.index.flush()
    asked, dropped = threading.Event(), threading.Event()
    count = index._usage  # pyright: ignore

    def count_and_linger(run: sqlite3.Connection) -> int:
        found = count(run)
        if threading.current_thread() is early:
            asked.set()
            dropped.wait(0.2)
        return found

    monkeypatch.setattr(index, "_usage", count_and_linger)
    early = threading.Thread(target=cache.index.reread_usage, args=(0,))
    early.start()
    assert asked.wait(20)
    cache.remove_objects([sample("object", 1000)[0].digest])
    dropped.set()
    early.join()
    assert cache.used_bytes == 0


def test_a_sweep_ends_early_when_the_mount_leaves(opened: Opener) -> None:
    cache = opened()
    cache.close()
    (cache.path / "objects" / "ab" / ("ab" * 16)).touch()
    assert cache.sweep(young_s=-100) == (0, 0)
