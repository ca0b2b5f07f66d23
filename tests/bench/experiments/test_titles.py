"""What arms are called in reports: each by a name of its own."""

from penstock.bench.experiments.systems import title_of
from penstock.bench.plans.known import ARMS
from penstock.bench.plans.model import ArmPlan


def test_no_two_arms_that_are_known_have_one_title() -> None:
    titles = [title_of(plan) for plan, _ in ARMS.values()]
    assert len(set(titles)) == len(titles)


def test_an_arm_of_ones_own_has_its_name_in_its_title() -> None:
    tuned = ArmPlan("tuned", "penstock", "cold", options={"block-size": "1MiB"})
    assert title_of(tuned) == "Penstock, cold, tuned"
