"""PlannedSampler: one order for a seed and an epoch, published ahead, resumed in the middle."""

import json
import os
import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

from penstock.errors import PlanError
from penstock.integrations import publisher
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
def test_an_order_is_a_function_of_seed_and_epoch_alone(kind: str) -> None:
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
def test_drawing_an_order_leaves_no_trace(kind: str) -> None:
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


def test_what_comes_next_is_published_before_it_is_asked_for_and_once(plans: Plans) -> None:
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
def test_a_sampler_that_was_made_before_a_fork_has_a_plan_in_the_child_too(plans: Plans) -> None:
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
    os.close(reader)
    os.close(writer)


def test_a_sampler_that_is_changed_between_epochs_hands_out_what_it_would_now(
    plans: Plans,
) -> None:
    files = samples.Files()
    wrapped = samples.ShufflesItsList()
    sampler = planning.PlannedSampler(wrapped, files)
    list(sampler)
    wrapped.order = wrapped.order[:10]
    assert sorted(sampler) == list(range(10))
    assert plans[0].restarts == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_and_their_number_do_not_change_the_order(plans: Plans) -> None:
    def epochs(*, batches: bool, **options: Any) -> list[list[int]]:
        """Those of a loader, which are those that its plan was told."""
        files = samples.Files()
        sampler: Any = data.RandomSampler(files)
        if batches:
            sampler = data.BatchSampler(sampler, 4, drop_last=False)
        planned = planning.PlannedSampler(sampler, files, seed=8)
        how = {"batch_sampler": planned} if batches else {"batch_size": 4, "sampler": planned}
        loader = data.DataLoader(files, **how, **options)
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


# -- resuming ------------------------------------------------------------------------------------


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


def test_what_workers_have_ahead_can_be_left_out_of_a_state() -> None:
    sampler = planned("shuffled", seed=3)
    drawn = iter(sampler)
    handed_out = [next(drawn) for _ in range(20)]
    resumed = planned("shuffled", seed=3)
    resumed.load_state_dict(sampler.state_dict(done=12))
    assert list(resumed)[:8] == handed_out[12:]


def test_after_an_epoch_that_was_over_comes_the_next_unless_that_one_is_asked_for() -> None:
    sampler = planned("shuffled", seed=3)
    _, second = list(sampler), list(sampler)
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


def test_a_state_of_something_else_is_refused() -> None:
    sampler = planned("shuffled", seed=3)
    first = list(sampler)
    for state, said in (
        ({"epoch": 1, "position": 3, "seed": 0, "length": 50}, "at 3 of 50 .* have 40"),
        ({"epoch": 1, "position": 41, "seed": 0, "length": 40}, "at 41 of 40"),
        ({"yielded": 3}, "not the state of a PlannedSampler"),
    ):
        with pytest.raises(PlanError, match=said):
            sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(("workers", "batches"), [(0, True), (2, False)])
def test_a_stateful_loader_resumes_with_exactly_the_remaining_samples(
    workers: int, batches: bool
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        files = samples.Files()
        sampler: Any = data.RandomSampler(files)
        if batches:
            sampler = data.BatchSampler(sampler, 4, drop_last=False)
        planned = planning.PlannedSampler(sampler, files, seed=2)
        how = {"batch_sampler": planned} if batches else {"batch_size": 4, "sampler": planned}
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


# -- bad input -----------------------------------------------------------------------------------


class Failing:
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise RuntimeError("the sampler's own")


def test_what_cannot_be_planned_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_a_mount_the_order_is_the_same_and_a_warning_says_so_once(
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
