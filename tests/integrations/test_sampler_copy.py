"""Copies of samplers share nothing that can change with what they were made from."""

import random
import threading
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Sampler

from penstock.integrations import sampler_copy
from penstock.integrations.forecast import Forecast, add_indices
from penstock.integrations.sampler_copy import NoOrder, copy_apart
from tests.support.loader_order import Files


class Holds(Sampler[int]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_generators_of_every_kind_go_on_as_the_originals_will() -> None:
    original = Holds(
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

    original = Holds(key=key, kind=Holds, module=random, order=[[1], [2]])
    copied = copy_apart(original)
    assert (copied.key, copied.kind, copied.module) == (key, Holds, random)
    copied.order[0].append(3)
    assert original.order == [[1], [2]]


def test_a_data_set_shows_its_length_and_its_attributes_and_cannot_be_changed() -> None:
    files = Files()
    copied = copy_apart(Holds(dataset=files)).dataset
    assert isinstance(copied, Files)
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


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
        ((number for number in range(3)), "cannot pickle 'generator' object"),
        (torch.nn.Linear(2, 2), "it holds what a model holds"),
        (torch.empty(2, device="meta"), "it holds what a model holds"),
        (bytes(2000), "it is too large"),
    ],
)
def test_what_cannot_be_kept_apart_is_refused(
    held: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_copy._Bounded, "_MOST_BYTES", 1000)
    with pytest.raises(NoOrder, match=f"Holds cannot be copied .*{reason}"):
        copy_apart(Holds(held=held))


@pytest.mark.parametrize(
    "drawn",
    [[3, 5], (3, 5), np.array([3, 5]), torch.tensor([3, 5]), [np.int64(3), torch.tensor(5)]],
)
def test_batches_in_any_form_are_indices(drawn: Any) -> None:
    order = array("q")
    add_indices(order, drawn)
    add_indices(order, torch.tensor(7))
    assert order.tolist() == [3, 5, 7]


@pytest.mark.parametrize("drawn", ["3", None, [(3, 224), (5, 224)], [[3], [5]], {"index": 3}])
def test_what_is_no_index_is_not_taken_for_one(drawn: Any) -> None:
    with pytest.raises(NoOrder, match="hands out"):
        add_indices(array("q"), drawn)


def test_a_forecast_in_parts_is_the_same_as_in_one() -> None:
    torch.manual_seed(7)
    sampler = RandomSampler(Files())
    whole, parts = (Forecast(sampler, iter(sampler), sampler.data_source) for _ in range(2))
    expected = whole.draw(1000)
    torch.rand(5)  # what the script draws in between does not matter
    drawn = parts.draw(3)
    while not parts.ended:
        torch.rand(5)
        drawn += parts.draw(7)
    assert drawn == expected
    assert whole.uses_shared_numbers
