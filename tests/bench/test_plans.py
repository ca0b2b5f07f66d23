"""A plan says what is measured; what is wrong with it is said with its line."""

from importlib import resources
from pathlib import Path

import pytest

from penstock.bench.datasets import planned_bytes
from penstock.bench.plans.experiments import (
    expand,
    medium_bytes,
    read_bytes,
    states_of,
    store_bytes,
)
from penstock.bench.plans.known_arms import ARMS
from penstock.bench.plans.model import DatasetPlan, Plan
from penstock.bench.plans.reading import read_plan, read_plan_file
from penstock.errors import ManifestError, UsageError
from penstock.units import KIB, MIB

ROOT = Path(__file__).parent.parent.parent
SMALL = """
name: study
dataset: {form: jpeg, size: 1MiB}
arms: [native, rclone, ceiling, penstock-50]
workloads:
  - read
  - {name: fed, kind: emulated, model: resnet50, accelerator: h100, accelerators: [2, 1], epochs: 3}
network: [near, {name: far, latency: 20ms, bandwidth: 50Mbit}]
repeats: 3
"""


def plan(text: str = SMALL) -> Plan:
    return read_plan(text, "plan.yaml", Path())


def mistakes(text: str, folder: Path = Path()) -> str:
    with pytest.raises(ManifestError) as caught:
        read_plan(text, "plan.yaml", folder)
    return f"{caught.value}\nhint: {caught.value.hint}"


def test_the_shipped_plans_can_be_read() -> None:
    template = resources.files("penstock.bench.plans").joinpath("template.yaml").read_text()
    assert expand(plan(template))
    assert [name for name in ARMS if name not in template] == []
    paths = sorted((ROOT / "plans").glob("*.yaml"))
    names = ["demo", "epoch", "gpu", "many", "peers", "quick", "seed-001"]
    assert [path.stem for path in paths if path.stem != "gpu-job"] == names
    assert all(expand(read_plan_file(path)) for path in paths if path.stem != "gpu-job")


def test_an_arm_can_be_changed_or_be_ones_own() -> None:
    changed = "{name: penstock-warm, options: {mode: passthrough}}"
    text = SMALL.replace("ceiling", f"{changed}, {{name: mine, system: juicefs, cacheShare: 0.5}}")
    arms = {arm.name: arm for arm in plan(text).arms}
    assert arms["penstock-warm"].state == "warm"
    assert arms["penstock-warm"].options == {"mode": "passthrough"}
    mine = arms["mine"]
    assert (mine.system, mine.state, mine.drops_pages) == ("juicefs", "cold", True)


SEVERAL = """
name: several
datasets: [{name: small, form: small, files: 3}, {name: large, form: large, files: 1}]
arms: [native, penstock-cold, {name: penstock-passthrough, datasets: [large]}]
workloads:
  - {name: read, readers: [8, 1], arms: [native, penstock-cold, penstock-passthrough]}
  - {name: names, kind: catalog, count: 10}
"""


def test_arms_and_workloads_choose_their_data_sets_and_some_read_none() -> None:
    found = expand(plan(SEVERAL))
    read = {(one.arm.name, one.dataset) for one in found if one.workload.name == "read"}
    both = {(arm, name) for arm in ("native", "penstock-cold") for name in ("small", "large")}
    assert read == {*both, ("penstock-passthrough", "large")}
    # Only Penstock has a catalog that can be measured.
    names = {(one.arm.name, one.dataset) for one in found if one.workload.name == "names"}
    assert names == {("penstock-cold", ""), ("penstock-passthrough", "")}
    assert {one.workload.reader_counts for one in found if one.dataset} == {(1, 8)}
    # What an experiment is given survives JSON.
    for text in (SEVERAL, SMALL):
        assert Plan.model_validate_json(plan(text).model_dump_json()) == plan(text)


def test_an_arm_is_read_in_the_states_that_it_can_be_in() -> None:
    def states(arm: str) -> tuple[str, ...]:
        found = expand(plan(SMALL.replace("rclone", arm)))
        (one,) = {
            states_of(one.arm, one.workload)
            for one in found
            if one.arm.name == arm and one.workload.name == "read"
        }
        return one

    assert states("penstock-cold") == ("cold", "cached", "warm")
    assert states("penstock-planned") == ("planned", "cached", "warm")
    assert states("penstock-warm") == ("cached", "warm")
    assert states("penstock-25") == ("cold", "cached")  # pages would hide the small cache
    assert states("rclone") == ("cold",)  # without a cache


def test_values_of_a_plan_can_be_set_by_name_or_place() -> None:
    changes = [
        "datasets.small.files=7",
        "workloads.0.readers=[2, 4]",
        "repeats=2",
        "arms.0=s3fs-cold",
    ]
    changes.append("workloads.read.arms=[s3fs-cold]")
    changed = read_plan(SEVERAL, "plan.yaml", Path(), changes)
    assert (changed.datasets[0].files, changed.repeats) == (7, 2)
    assert changed.workloads[0].reader_counts == (2, 4)
    assert changed.arms[0].name == "s3fs-cold"
    with pytest.raises(UsageError, match="the plan has no tiny there"):
        read_plan(SEVERAL, "plan.yaml", Path(), ["datasets.tiny.files=7"])
    with pytest.raises(UsageError, match="not PATH=VALUE"):
        read_plan(SEVERAL, "plan.yaml", Path(), ["repeats"])
    with pytest.raises(ManifestError, match="repeats: must be 1 or more"):
        read_plan(SEVERAL, "plan.yaml", Path(), ["repeats=0"])


def test_every_repeat_has_each_experiment_once_in_an_order_of_its_own() -> None:
    found = expand(plan())
    assert found == expand(plan())
    # Without I/O there is nothing to read: 3 arms read, 4 are emulated, on two lines.
    assert len(found) == (3 + 4) * 2 * 3
    assert len({one.id for one in found}) == len(found)
    assert [one.order for one in found] == list(range(len(found)))
    assert [one.repeat for one in found] == sorted(one.repeat for one in found)
    orders = [
        [(one.arm.name, one.workload.name, one.shape.name) for one in found if one.repeat == number]
        for number in range(3)
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert len({frozenset(order) for order in orders}) == 1
    other = expand(plan().model_copy(update={"seed": 2}))
    assert [one.id for one in other] != [one.id for one in found]
    # All arms read in the same order: one for each workload and repeat.
    assert len({(one.workload.name, one.repeat, one.seed) for one in found}) == 2 * 3


def test_how_much_an_experiment_moves_is_known_before() -> None:
    found = {(one.arm.name, one.workload.name): one for one in expand(plan())}
    # Three epochs cached, five warm; without a cache, one.
    assert read_bytes(found["native", "read"], 100) == 800
    assert read_bytes(found["rclone", "read"], 100) == 100
    assert store_bytes(found["native", "read"], 100) == 0
    assert read_bytes(found["ceiling", "fed"], 100) == 0
    assert read_bytes(found["rclone", "fed"], 100) == 600  # three epochs, by one and by two
    assert store_bytes(found["rclone", "read"], 100) == 100
    assert store_bytes(found["penstock-50", "read"], 100) == 250
    sizes = {"data": 1000}
    alone = medium_bytes(plan(), expand(plan()), sizes)
    # One more cache at a time: half of the data, and a quarter more.
    assert (
        medium_bytes(plan().model_copy(update={"parallel": 2}), expand(plan()), sizes)
        == alone + 625
    )
    # A local store has a copy of the data set.
    elsewhere = plan().model_copy(update={"storage_backend": "s3"})
    assert alone - medium_bytes(elsewhere, expand(plan()), sizes) == 1000
    # Room is looked for in whole files.
    assert planned_bytes(DatasetPlan(form="tfrecord", size_bytes=48 * MIB)) == 130_000_000
    assert planned_bytes(DatasetPlan(form="small", files=3)) == 3 * 110 * KIB
    assert planned_bytes(DatasetPlan(form="given", path="/x")) is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("repeats: 3", "repeat: 3", "plan.yaml:9: repeat: unknown field\n"
         "hint: did you mean repeats?"),
        ("rclone", "rclne", "plan.yaml:4: arms.1: 'rclne' is no known arm, and names no system\n"
         "hint: did you mean rclone?"),
        ("form: jpeg", "form: jpg", "plan.yaml:3: dataset.form: must be one of"),
        ("size: 1MiB", "size: lots", "dataset.size: 'lots' is not a size"),
        ("size: 1MiB", "size: 1MiB, files: 3", "dataset: has both files and size"),
        ("50Mbit", "50Mb", "network.1.bandwidth: '50Mb' may mean bits or bytes"),
        ("accelerator: h100, ", "", "kind: emulated needs model and accelerator"),
        ("h100", "b200", "there is no published step time of resnet50 on b200"),
        ("rclone", "native", "arms: 'native' stands twice"),
        ("repeats: 3", "repeats: 0", "repeats: must be 1 or more"),
        ("repeats: 3", "storageBackend: s3", "storageBackend: s3 needs s3DatasetPath"),
        ("network: [near, {name: far, latency: 20ms, bandwidth: 50Mbit}]",
         "parallel: 2\nstorageBackend: s3\ns3DatasetPath: s3://b/sets",
         "a store that speaks TLS is counted for the whole machine"),
        ("repeats: 3", "s3ResultPath: bucket/x", "'bucket/x' is not a source"),
        ("rclone", "{name: rclone, options: {s3-secret-access-key: x}}", "keys do not belong"),
        ("epochs: 3}", "epochs: 3, readers: [1, 2]}", "go with kind: read"),
        ("repeats: 3", "parallel: 2", "a workload of the kind read measures times"),
        ("rclone", "penstock-loaded", "the state loaded goes with workloads of the kind loader"),
        ("- read", "- {name: read, arms: [rclon]}", "arms: 'rclon' is not in this plan"),
        ("dataset: {form: jpeg, size: 1MiB}", "", "dataset: is missing"),
        ("repeats: 3", "goals: [{arm: native, measure: busy}]", "needs atLeast or atMost"),
        (SMALL, "- a list", "is not a plan"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_line_and_what_to_do(before: str, after: str, said: str) -> None:
    assert said in mistakes(SMALL.replace(before, after, 1))


def test_a_wrong_job_manifest_is_said_with_its_own_line(tmp_path: Path) -> None:
    text = SMALL + "experiments: [{experiment: job, trainingJobConfig: job.yaml}]\n"
    said = mistakes(text, tmp_path)
    assert "plan.yaml:10: experiments.0.trainingJobConfig" in said
    assert "job.yaml: No such file or directory" in said
    (tmp_path / "job.yaml").write_text(
        "kind: Dataset\napiVersion: data.fluid.io/v1alpha1\nmetadata: {name: x}\n"
        "spec: {mounts: [{mountPoint: 's3://b/x', name: x}]}\n"
    )
    assert "wants one TrainingJob and nothing else" in mistakes(text, tmp_path)
