"""What a plan is drawn from: the file behind each index, and copies of samplers, which share
nothing that can change with their originals."""

import random
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from penstock.integrations import sampler_copy
from penstock.integrations.dataset_files import NoFiles, files_of
from penstock.integrations.forecast import Forecast, add_indices
from penstock.integrations.sampler_copy import NoOrder, copy_apart
from tests.support.lazy import Lazy

np = Lazy("numpy")
torch = Lazy("torch")
data = Lazy("torch.utils.data")
samples = Lazy("tests.support.loader_order")


class Like:
    """A data set or a sampler with these attributes. It has no __getitem__: nothing is read."""

    def __init__(self, length: int = 0, **attributes: Any) -> None:
        self.length = length
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.length


# -- files ------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["samples", "imgs", "files", "paths"])
def test_files_are_found_in_lists_of_any_usual_form(attribute: str) -> None:
    for values in (
        ["/d/a", "/d/b"], [Path("/d/a"), Path("/d/b")], [b"/d/a", b"/d/b"],
        [("/d/a", 0), ("/d/b", 1)], np.array(["/d/a", "/d/b"]),
    ):  # fmt: skip
        assert files_of(Like(2, **{attribute: values})) == ["/d/a", "/d/b"]


def test_subsets_and_concatenations_are_looked_through() -> None:
    one = Like(3, samples=[3, 4, 5], paths=["/d/a", "/d/b", "/d/c"])
    other = Like(1, samples=[("/e/a", 0)])
    nested = data.Subset(data.Subset(one, [2, 0]), [1])
    found = files_of(data.ConcatDataset([nested, other, one]))
    assert found == ["/d/a", "/e/a", "/d/a", "/d/b", "/d/c"]


def test_a_data_set_whose_files_cannot_be_told_has_a_reason() -> None:
    for dataset, reason in (
        (data.TensorDataset(), "TensorDataset does not tell which files its samples are"),
        (Like(4, paths=["/d/a", "/d/b"]), "Like has 4 samples, but 2 files in `paths`"),
        (data.Subset(Like(1, paths=["/d/a"]), [7]), "Subset chooses samples that its data set"),
        (["/d/a"], "list does not tell"),
    ):
        with pytest.raises(NoFiles, match=reason):
            files_of(dataset)


# -- samplers ---------------------------------------------------------------------------


def test_generators_of_every_kind_go_on_as_the_originals_will() -> None:
    original = Like(
        ours=torch.Generator().manual_seed(1), pythons=random.Random(1),
        numpys=np.random.default_rng(1), old=np.random.RandomState(1),
    )  # fmt: skip

    def draw(one: Any) -> list[float]:
        return [
            torch.rand((), generator=one.ours).item(), one.pythons.random(),
            one.numpys.random(), one.old.random_sample(),
        ]  # fmt: skip

    copied = copy_apart(original)
    first = draw(copied)
    assert draw(copied) != first == draw(original)


def test_code_is_shared_and_lists_are_not() -> None:
    def key(index: int) -> int:
        return -index

    original = Like(key=key, kind=Like, module=random, order=[[1], [2]])
    copied = copy_apart(original)
    assert (copied.key, copied.kind, copied.module) == (key, Like, random)
    copied.order[0].append(3)
    assert original.order == [[1], [2]]


def test_a_data_set_shows_its_length_and_its_attributes_and_cannot_be_changed() -> None:
    files = samples.Files()
    copied = copy_apart(Like(dataset=files)).dataset
    assert isinstance(copied, samples.Files)
    assert len(copied) == len(files)
    copied.paths.reverse()
    copied.paths.append("more")
    assert copied.paths[0] == files.paths[-1]
    assert len(files.paths) == len(files)
    copied.epoch = 3
    assert not hasattr(files, "epoch")
    with pytest.raises(NoOrder, match="reads the data set"):
        copied[0]
    with pytest.raises(NoOrder, match=r"calls __getitem__\(\)"):
        copied.__getattr__("__getitem__")


def test_what_cannot_be_kept_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_copy._Bounded, "_MOST_BYTES", 1000)
    for held, reason in (
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
        ((number for number in range(3)), "cannot pickle 'generator' object"),
        (torch.nn.Linear(2, 2), "it holds what a model holds"),
        (torch.empty(2, device="meta"), "it holds what a model holds"),
        (bytes(2000), "it is too large"),
    ):
        with pytest.raises(NoOrder, match=f"Like cannot be copied .*{reason}"):
            copy_apart(Like(held=held))


def test_batches_in_any_form_are_indices_and_nothing_else_is() -> None:
    tensors = torch.tensor([3, 5]), [np.int64(3), torch.tensor(5)]
    for drawn in ([3, 5], (3, 5), np.array([3, 5]), *tensors):
        order = array("q")
        add_indices(order, drawn)
        add_indices(order, torch.tensor(7))
        assert order.tolist() == [3, 5, 7]
    for drawn in ("3", None, [(3, 224), (5, 224)], [[3], [5]], {"index": 3}):
        with pytest.raises(NoOrder, match="hands out"):
            add_indices(array("q"), drawn)


def test_a_forecast_in_parts_is_the_same_as_in_one() -> None:
    torch.manual_seed(7)
    sampler = data.RandomSampler(samples.Files())
    whole, parts = (Forecast(sampler, iter(sampler), sampler.data_source) for _ in range(2))
    expected = whole.draw(1000)
    torch.rand(5)  # what the script draws in between does not matter
    drawn = parts.draw(3)
    while not parts.ended:
        torch.rand(5)
        drawn += parts.draw(7)
    assert drawn == expected
    assert whole.uses_shared_numbers
