"""The data sets are what they say, and the same for everyone."""

from collections import Counter
from pathlib import Path

from PIL import Image

from penstock.bench.dataset import Dataset, make_jpegs, make_large, make_small
from penstock.units import KIB, MIB


def content(dataset: Dataset) -> dict[str, bytes]:
    found = {entry.path: (dataset.root / entry.path).read_bytes() for entry in dataset.entries}
    on_disk = [path for path in dataset.root.rglob("*") if path.is_file()]
    assert len(on_disk) == len(found)
    assert [len(found[entry.path]) for entry in dataset.entries] == [
        entry.size_bytes for entry in dataset.entries
    ]
    return found


def test_jpegs_are_real_pictures_of_imagenets_size(tmp_path: Path) -> None:
    jpegs = make_jpegs(tmp_path / "jpegs", 60)
    for entry in jpegs.entries[::10]:
        with Image.open(jpegs.root / entry.path) as picture:
            picture.load()
            assert picture.format == "JPEG"
    sizes = [entry.size_bytes for entry in jpegs.entries]
    assert 90 * KIB < sum(sizes) / len(sizes) < 130 * KIB
    assert min(sizes) < 70 * KIB
    assert max(sizes) > 160 * KIB


def test_small_files_are_exactly_110_kib_and_all_different(tmp_path: Path) -> None:
    found = content(make_small(tmp_path / "small", 20))
    assert {len(data) for data in found.values()} == {110 * KIB}
    assert len(set(found.values())) == 20


def test_a_class_folder_has_250_files(tmp_path: Path) -> None:
    found = content(make_small(tmp_path / "small", 251, size_bytes=8))
    assert Counter(path.split("/")[0] for path in found) == {"n01440764": 250, "n01448683": 1}


def test_large_files_have_the_size_asked_for_and_differ(tmp_path: Path) -> None:
    found = content(make_large(tmp_path / "large", 2, size_bytes=17 * MIB + 5))
    assert {len(data) for data in found.values()} == {17 * MIB + 5}
    assert len(set(found.values())) == 2


def test_a_seed_always_makes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for make in (make_jpegs, make_small):
        first = content(make(tmp_path / make.__name__ / "a", 5, seed=7))
        again = content(make(tmp_path / make.__name__ / "b", 5, seed=7))
        other = content(make(tmp_path / make.__name__ / "c", 5, seed=8))
        assert first == again
        assert first != other
