"""Which file is behind an index: found by attributes, or a reason why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from penstock.integrations.dataset_files import NoFiles, files_of


class Like(Dataset[Any]):
    """A data set with these attributes."""

    def __init__(self, length: int, **attributes: Any) -> None:
        self.length = length
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nothing is read to find the files")


@pytest.mark.parametrize(
    "values",
    [
        ["/d/a", "/d/b"],
        [Path("/d/a"), Path("/d/b")],
        [b"/d/a", b"/d/b"],
        [("/d/a", 0), ("/d/b", 1)],
        np.array(["/d/a", "/d/b"]),
    ],
)
@pytest.mark.parametrize("attribute", ["samples", "imgs", "files", "paths"])
def test_files_are_found_in_lists_of_any_usual_form(attribute: str, values: Any) -> None:
    assert files_of(Like(2, **{attribute: values})) == ["/d/a", "/d/b"]


def test_a_list_that_holds_no_paths_is_passed_over_for_one_that_does() -> None:
    assert files_of(Like(2, samples=[3, 4], paths=["/d/a", "/d/b"])) == ["/d/a", "/d/b"]


def test_subsets_and_concatenations_are_looked_through() -> None:
    one = Like(3, paths=["/d/a", "/d/b", "/d/c"])
    other = Like(1, samples=[("/e/a", 0)])
    nested = Subset(Subset(one, [2, 0]), [1])
    assert files_of(ConcatDataset([nested, other, one])) == [
        "/d/a", "/e/a", "/d/a", "/d/b", "/d/c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (TensorDataset(), "TensorDataset does not tell which files its samples are"),
        (Like(2), "Like does not tell which files its samples are"),
        (Like(4, paths=["/d/a", "/d/b"]), "Like has 4 samples, but 2 files in `paths`"),
        (Subset(Like(1, paths=["/d/a"]), [7]), "Subset chooses samples that its data set"),
        (["/d/a"], "list does not tell"),
    ],
)
def test_what_cannot_be_told_has_a_reason(dataset: Any, reason: str) -> None:
    with pytest.raises(NoFiles, match=reason):
        files_of(dataset)
