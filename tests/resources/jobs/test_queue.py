"""Who may start."""

import pytest

from penstock.resources.jobs.queue import Holding, Verdict, Waiting, decide


def jobs(*given: tuple[str, dict[str, float]]) -> list[Waiting]:
    return [
        Waiting(name, (float(number), name), int(wants.get("priority", 0)),
                int(wants.get("gpus", 0)), wants.get("cores", 0.0))
        for number, (name, wants) in enumerate(given)
    ]  # fmt: skip


def decided(
    waiting: list[Waiting], *holding: Holding, gpus: int = 4, cores: float = 8
) -> dict[str, Verdict]:
    verdicts = decide(waiting, holding, range(gpus), cores)
    return {one.name: verdicts[one.order] for one in waiting}


def test_each_gets_devices_of_its_own() -> None:
    found = decided(jobs(("a", {"gpus": 1}), ("b", {"gpus": 2})), Holding("old", (1,)))
    assert found == {"a": Verdict((0,)), "b": Verdict((2, 3))}


def test_the_first_job_starts_first_and_the_other_is_told_what_it_waits_for() -> None:
    found = decided(jobs(("a", {"gpus": 1}), ("b", {"gpus": 1})), gpus=1)
    assert found == {"a": Verdict((0,)), "b": Verdict(None, "waits for 1 GPU; taken by job a")}


def test_a_higher_priority_goes_first() -> None:
    waiting = jobs(("a", {"gpus": 1}), ("b", {"gpus": 1, "priority": 5}))
    found = decided(waiting, gpus=1)
    assert found["b"] == Verdict((0,))
    assert found["a"].gpus is None


def test_nobody_overtakes_one_that_waits_for_many() -> None:
    waiting = jobs(("big", {"gpus": 4}), ("small", {"gpus": 1}), ("none", {}))
    found = decided(waiting, Holding("old", (0,)))
    assert found["big"] == Verdict(None, "waits for 4 GPUs; taken by job old")
    assert found["small"] == Verdict(None, "waits for 1 GPU; job big is before it")
    assert found["none"] == Verdict(())


def test_cores_that_were_asked_for_are_counted_too() -> None:
    waiting = jobs(("a", {"cores": 2}), ("b", {"cores": 3}), ("c", {}))
    found = decided(waiting, Holding("old", (), 4.0))
    assert found["a"] == Verdict(())
    assert found["b"] == Verdict(None, "waits for 3 cores; taken by jobs old, a")
    assert found["c"] == Verdict(())


@pytest.mark.parametrize(("others", "gpus"), [((), ()), ((Holding("old", (), 0.5),), None)])
def test_one_that_wants_more_cores_than_there_are_starts_when_it_is_alone(
    others: tuple[Holding, ...], gpus: tuple[int, ...] | None
) -> None:
    assert decided(jobs(("a", {"cores": 100})), *others)["a"].gpus == gpus


def test_gpus_that_went_away_are_waited_for() -> None:
    found = decided(jobs(("a", {"gpus": 2})), gpus=1)
    assert found["a"] == Verdict(None, "waits for 2 GPUs; this machine has 1")
