"""PlannedSampler: one order for a seed and an epoch, published ahead, resumed in the middle.

And what a plan is drawn from: the file behind each index, and copies of samplers, which share
nothing that can change with their originals.
"""

import json
import os
import random
import threading
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PlanError
from penstock.integrations import publisher, sampler_copy
from penstock.integrations.dataset_files import NoFiles, files_of
from penstock.integrations.forecast import Forecast, add_indices
from penstock.integrations.sampler_copy import UnpredictableOrder, isolated_copy
from tests.support import recorded
from tests.support.lazy import Lazy

np = Lazy("numpy")
torch = Lazy("torch")
data = Lazy("torch.utils.data")
planning = Lazy("penstock.integrations.torch.sampler")
samples = Lazy("tests.support.loader_order")
FILES = 40  # of loader_order
Plans = list[recorded.RecordedPlan]

KINDS: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda files: data.RandomSampler(files),
    "with a generator": lambda files: data.RandomSampler(files, generator=torch.Generator()),
    "in batches": lambda files: data.BatchSampler(data.RandomSampler(files), 7, drop_last=True),
    "distributed": lambda files: data.DistributedSampler(files, num_replicas=2, rank=1),
    "batches of a rank": lambda files: data.BatchSampler(
        data.DistributedSampler(files, num_replicas=2, rank=0), 4, drop_last=False
    ),
    "shuffles its list": lambda _: samples.ShufflesItsList(),
    "its own generator": lambda _: samples.HasItsOwnGenerator(),
}


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    """The plans that this process makes, recorded instead of handed to a mount."""
    monkeypatch.setattr(publisher, "open_plan", recorded.open_plan)
    yield recorded.PLANS
    recorded.PLANS.clear()


def planned(kind: str, **options: Any) -> Any:
    return planning.PlannedSampler(KINDS[kind](samples.Files()), samples.Files(), **options)


def flat(epoch: Any) -> list[int]:
    return [int(i) for item in epoch for i in np.atleast_1d(item)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_depends_only_on_seed_and_epoch(kind: str) -> None:
    def epochs(seed: int) -> list[list[Any]]:
        torch.manual_seed(random.randrange(1000))
        sampler = planned(kind, seed=seed)
        return [list(sampler) for _ in range(3)]

    first = epochs(5)
    assert first == epochs(5)
    assert first[0] != first[1] != first[2]
    later = planned(kind, seed=5)
    later.set_epoch(2)
    assert list(later) == first[2]
    if "distributed" not in kind and "rank" not in kind:  # those have a seed of their own
        assert epochs(6) != first
        whole = FILES - FILES % 7 if kind == "in batches" else FILES
        assert [len(set(flat(epoch))) for epoch in first] == [whole] * 3


def test_each_rank_has_its_share_of_the_same_order() -> None:
    shares: list[int] = []
    for rank in (0, 1):
        plain, wrapped = (
            data.DistributedSampler(samples.Files(), num_replicas=2, rank=rank) for _ in range(2)
        )
        sampler = planning.PlannedSampler(wrapped, samples.Files())
        for one in (plain, sampler):
            one.set_epoch(4)
        share = list(sampler)
        assert share == list(plain)
        shares += share
    assert sorted(shares) == list(range(FILES))


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_an_order_has_no_side_effect(kind: str) -> None:
    files = samples.Files()

    def draw(sampler: Any) -> tuple[list[Any], float, float, float]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        drawn = list(sampler)
        return drawn, torch.rand(()).item(), random.random(), float(np.random.rand())

    wrapped = KINDS[kind](files)
    assert draw(planning.PlannedSampler(wrapped, files))[1:] == draw([])[1:]
    assert draw(wrapped) == draw(KINDS[kind](files))  # as one that was never wrapped


def test_the_next_order_is_published_once_before_it_is_requested(plans: Plans) -> None:
    other = planned("shuffled", seed=1)
    orders = [list(other) for _ in range(4)]
    sampler = planned("shuffled", seed=1, lag=8)
    plan = plans[-1]
    assert plan.order == orders[0]
    sampler.set_epoch(0)
    assert (plan.order, plan.restarts) == (orders[0], 0)
    sampler.set_epoch(2)
    assert (plan.order, plan.restarts) == (orders[2], 1)
    sampler.load_state_dict({"epoch": 1, "position": 30, "seed": 1, "length": FILES})
    assert (plan.order, plan.restarts) == (orders[1][30:], 2)
    assert list(sampler) == orders[1][30:]
    drawn = iter(sampler)
    assert [next(drawn) for _ in range(5)] == orders[2][:5]
    assert (plan.handed_out, plan.done) == (10 + 5, 10 + 5 - 8 - 1)
    sampler.set_epoch(3)  # while epoch 2 goes on: that must not be taken back
    assert [*drawn] == orders[2][5:]
    sampler.set_epoch(3)
    assert plan.order == orders[1][30:] + orders[2] + orders[3]
    assert list(sampler) == orders[3]
    assert (plan.restarts, len(plans)) == (2, 2)
    sampler.close()
    assert plan.closed


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_sampler_created_before_a_fork_has_a_plan_in_the_child_too(plans: Plans) -> None:
    sampler = planned("shuffled", seed=1)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            drawn = list(sampler)
            own = len(plans) == 2 and plans[1].order[:FILES] == drawn and not plans[0].handed_out
            os.write(writer, b"its own" if own else b"none")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"its own"


def test_a_sampler_changed_between_epochs_publishes_its_new_order(plans: Plans) -> None:
    wrapped = samples.ShufflesItsList()
    sampler = planning.PlannedSampler(wrapped, samples.Files())
    list(sampler)
    wrapped.order = wrapped.order[:10]
    assert sorted(sampler) == list(range(10))
    assert plans[0].restarts == 1


def loader_options(files: Any, seed: int, *, batches: bool) -> dict[str, Any]:
    """Options of a loader that shuffles by a planned sampler, of samples or of batches of four."""
    sampler: Any = data.RandomSampler(files)
    if batches:
        sampler = data.BatchSampler(sampler, 4, drop_last=False)
    sampler = planning.PlannedSampler(sampler, files, seed=seed)
    return {"batch_sampler": sampler} if batches else {"batch_size": 4, "sampler": sampler}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_and_their_number_do_not_change_the_order(plans: Plans) -> None:
    def epochs(*, batches: bool, **options: Any) -> list[list[int]]:
        """Those of a loader, which are those that its plan was told."""
        files = samples.Files()
        loader = data.DataLoader(files, **loader_options(files, 8, batches=batches), **options)
        read = [flat(loader) for _ in range(2)]
        plan = plans.pop()
        assert plan.order[: plan.handed_out] == list(chain(*read))
        assert plan.restarts == 0
        return read

    fork = {"num_workers": 2, "multiprocessing_context": "fork"}
    for batches in (False, True):
        alone = epochs(batches=batches)
        assert alone[0] != alone[1]
        assert epochs(batches=batches, **fork) == alone
    spawn = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    assert epochs(batches=True, **spawn) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_resumed_in_mid_epoch_on_the_same_order(kind: str, plans: Plans) -> None:
    whole = planned(kind, seed=3)
    epochs = [list(whole) for _ in range(3)]
    saving = planned(kind, seed=3)
    list(saving)
    drawn = iter(saving)
    assert [next(drawn) for _ in range(3)] == epochs[1][:3]
    state = json.loads(json.dumps(saving.state_dict()))
    assert state == {"epoch": 1, "position": 3, "seed": 3, "length": len(epochs[1])}
    resumed = planned(kind, seed=99)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.set_epoch(1)  # as loops do; the position stays
    assert list(resumed) == epochs[1][3:]
    assert list(resumed) == epochs[2]
    rest = flat(epochs[1][3:] + epochs[2])
    assert plans[-1].order[: len(rest)] == rest  # what was read before is not read ahead again


def test_a_state_excludes_prefetched_samples_and_is_rejected_for_another_data_set() -> None:
    sampler = planned("shuffled", seed=3)
    drawn = iter(sampler)
    handed_out = [next(drawn) for _ in range(20)]
    resumed = planned("shuffled", seed=3)
    resumed.load_state_dict(sampler.state_dict(done=12))
    assert list(resumed)[:8] == handed_out[12:]
    # After an epoch that was over comes the next, unless that one is asked for.
    sampler = planned("shuffled", seed=3)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    list(sampler)
    state = sampler.state_dict()
    assert state["position"] == state["length"]
    sampler.load_state_dict(state)
    assert list(sampler) == second
    sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert list(sampler) == []
    assert list(sampler) == second
    for state, message in (
        ({"epoch": 1, "position": 3, "seed": 0, "length": 50}, "at 3 of 50 .* have 40"),
        ({"epoch": 1, "position": 41, "seed": 0, "length": 40}, "at 41 of 40"),
        ({"yielded": 3}, "not the state of a PlannedSampler"),
    ):
        with pytest.raises(PlanError, match=message):
            sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(("workers", "batches"), [(0, True), (2, False)])
def test_a_stateful_loader_resumes_with_exactly_the_remaining_samples(
    workers: int, batches: bool
) -> None:
    from torchdata import stateful_dataloader as stateful

    def loader() -> Any:
        files = samples.Files()
        how = loader_options(files, 2, batches=batches)
        return stateful.StatefulDataLoader(files, num_workers=workers, **how)

    whole, saving, middle, after = (loader() for _ in range(4))
    epochs = [flat(whole) for _ in range(3)]
    assert flat(saving) == epochs[0]
    after.load_state_dict(saving.state_dict())
    assert [flat(after), flat(after)] == epochs[1:]
    drawn = iter(saving)
    seen = flat([next(drawn) for _ in range(3)])
    middle.load_state_dict(saving.state_dict())
    assert seen + flat(middle) == epochs[1]
    assert flat(middle) == epochs[2]


class Failing:
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise RuntimeError("the sampler's own")


def test_a_loader_that_cannot_be_planned_is_rejected_with_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = samples.Files()
    with pytest.raises(PlanError, match="Endless does not tell what it samples from") as caught:
        planning.PlannedSampler(samples.Endless())
    assert "paths=" in str(caught.value.hint)
    with pytest.raises(PlanError, match="list does not tell which files"):
        planning.PlannedSampler(data.RandomSampler([1, 2]))
    with pytest.raises(PlanError, match="HoldsALock cannot be copied"):
        next(iter(planning.PlannedSampler(samples.HoldsALock(), files)))
    with pytest.raises(RuntimeError, match="the sampler's own"):
        next(iter(planning.PlannedSampler(Failing(), files)))
    with pytest.raises(PlanError, match="indices beyond the 3 files"):
        next(iter(planning.PlannedSampler([1, 3], paths=["a", "b", "c"])))
    monkeypatch.setattr("penstock.integrations.torch.sampler._MOST_DRAWN", 1000)
    with pytest.raises(PlanError, match="Endless has not ended after 1,000"):
        next(iter(planning.PlannedSampler(samples.Endless(), files)))
    reads_its_data_set = samples.CallsItsDataset(files)
    assert sorted(planning.PlannedSampler(reads_its_data_set)) == list(range(FILES))


def test_without_a_mount_the_order_is_the_same_after_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = planned("shuffled", seed=3)
    expected = [list(sampler), list(sampler)]
    monkeypatch.undo()
    unplanned = planned("shuffled", seed=3)
    assert [list(unplanned), list(unplanned)] == expected
    assert [record.getMessage() for record in caplog.records] == [
        "no plan: no Penstock mount holds these files: /data/0 and 39 more; "
        "hint: `penstock stats` lists what is mounted by you"
    ]


class Like:
    """A data set or a sampler with these attributes. It has no __getitem__: nothing is read."""

    def __init__(self, length: int = 0, **attributes: Any) -> None:
        self.length = length
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("attribute", ["samples", "imgs", "files", "paths"])
def test_files_are_found_in_any_usual_form_of_list_or_a_reason_is_given(attribute: str) -> None:
    for values in (
        ["/d/a", "/d/b"],
        [Path("/d/a"), Path("/d/b")],
        [b"/d/a", b"/d/b"],
        [("/d/a", 0), ("/d/b", 1)],
        np.array(["/d/a", "/d/b"]),
    ):
        assert files_of(Like(2, **{attribute: values})) == ["/d/a", "/d/b"]
    # Subsets and concatenations are looked through.
    one = Like(3, samples=[3, 4, 5], paths=["/d/a", "/d/b", "/d/c"])
    other = Like(1, samples=[("/e/a", 0)])
    nested = data.Subset(data.Subset(one, [2, 0]), [1])
    found = files_of(data.ConcatDataset([nested, other, one]))
    assert found == ["/d/a", "/e/a", "/d/a", "/d/b", "/d/c"]
    for dataset, reason in (
        (data.TensorDataset(), "TensorDataset does not tell which files its samples are"),
        (Like(4, paths=["/d/a", "/d/b"]), "Like has 4 samples, but 2 files in `paths`"),
        (data.Subset(Like(1, paths=["/d/a"]), [7]), "Subset chooses samples that its data set"),
        (["/d/a"], "list does not tell"),
    ):
        with pytest.raises(NoFiles, match=reason):
            files_of(dataset)


def test_generators_continue_like_the_originals_and_share_code_but_not_lists() -> None:
    def draw(one: Any) -> list[float]:
        return [
            torch.rand((), generator=one.ours).item(),
            one.pythons.random(),
            one.numpys.random(),
            one.old.random_sample(),
        ]

    original = Like(
        ours=torch.Generator().manual_seed(1),
        pythons=random.Random(1),
        numpys=np.random.default_rng(1),
        old=np.random.RandomState(1),
        key=draw,
        kind=Like,
        module=random,
        order=[[1], [2]],
    )
    copied = isolated_copy(original)
    first = draw(copied)
    assert draw(copied) != first == draw(original)
    assert (copied.key, copied.kind, copied.module) == (draw, Like, random)
    copied.order[0].append(3)
    assert original.order == [[1], [2]]


def test_a_data_set_shows_its_length_and_attributes_and_cannot_be_changed() -> None:
    files = samples.Files()
    copied = isolated_copy(Like(dataset=files)).dataset
    assert isinstance(copied, samples.Files)
    assert len(copied) == len(files)
    copied.paths.reverse()
    copied.paths.append("more")
    assert copied.paths[0] == files.paths[-1]
    assert len(files.paths) == len(files)
    copied.epoch = 3
    assert not hasattr(files, "epoch")
    with pytest.raises(UnpredictableOrder, match="reads the data set"):
        copied[0]
    with pytest.raises(UnpredictableOrder, match=r"calls __getitem__\(\)"):
        copied.__getattr__("__getitem__")


def test_objects_that_cannot_be_kept_apart_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_copy._BoundedMemory, "_MOST_BYTES", 1000)
    for held, reason in (
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
        ((number for number in range(3)), "cannot pickle 'generator' object"),
        (torch.nn.Linear(2, 2), "it holds parts of a model"),
        (torch.empty(2, device="meta"), "it holds parts of a model"),
        (bytes(2000), "it is too large"),
    ):
        with pytest.raises(UnpredictableOrder, match=f"Like cannot be copied .*{reason}"):
            isolated_copy(Like(held=held))


def test_batches_of_any_form_are_indices_and_nothing_else_is() -> None:
    tensors = torch.tensor([3, 5]), [np.int64(3), torch.tensor(5)]
    for drawn in ([3, 5], (3, 5), np.array([3, 5]), *tensors):
        order = array("q")
        add_indices(order, drawn)
        add_indices(order, torch.tensor(7))
        assert order.tolist() == [3, 5, 7]
    for drawn in ("3", None, [(3, 224), (5, 224)], [[3], [5]], {"index": 3}):
        with pytest.raises(UnpredictableOrder, match="hands out"):
            add_indices(array("q"), drawn)


def test_a_forecast_in_parts_equals_one_in_a_single_pass() -> None:
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
