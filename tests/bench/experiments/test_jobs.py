"""A training job as the workload of an experiment.

Warm ones: before a cold one the pages of the whole machine are dropped, which other tests count on.
"""

import pytest

from penstock.bench.plans.model import ArmPlan, WorkloadPlan
from tests.support.experiments import Bench

pytestmark = pytest.mark.slow  # a job takes 4 s to start and to end

# Reads everything, epoch by epoch, and says so; or stops at once.
TRAIN = """
for epoch in $(seq 0 $((EPOCHS - 1))); do
  test "$(find $DATA_DIR -type f -name '*.bin' | xargs cat | wc -c)" -gt 0 || exit 1
  echo '{"epoch": '$epoch', "images_per_s": 20, "data_wait_share": 0.25, "seconds": 2, "top1": 9}'
done
"""


def job(command: str) -> WorkloadPlan:
    manifest = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "resnet"},
        "spec": {
            "trainer": "mpi",
            "launch": "launcher",
            "command": command,
            "data": [{"dataset": "imagenet", "mountPath": "/data"}],
        },
    }
    return WorkloadPlan("job", "job", epochs=2, job=manifest)


def test_a_job_reads_the_arms_folder_and_what_it_says_are_the_figures(bench: Bench) -> None:
    done = bench.run(ArmPlan("penstock", "penstock", "warm", drops_pages=False), job(TRAIN))
    assert (done.status, done.result["failure"]) == (0, None)
    # Two seconds of 20 images each second.
    assert [epoch["samples"] for epoch in done.result["epochs"]] == [40, 40]
    assert [epoch["busy_share"] for epoch in done.result["epochs"]] == [0.75] * 2
    assert done.result["epochs"][1]["top1"] == 9
    assert not done.result["workload"]["emulated"]
    assert list((done.folder / "logs").glob("job-*.log"))


@pytest.mark.parametrize(
    ("command", "ends", "said"),
    [
        ("echo no such model >&2; exit 3", "the job failed after 0 epochs", "no such model"),
        ("true", "the job succeeded after 0 epochs", '"images_per_s": …'),
    ],
)
def test_a_job_without_figures_is_a_failure_that_says_why(
    bench: Bench, command: str, ends: str, said: str
) -> None:
    done = bench.run(ArmPlan("native", "native", "warm", drops_pages=False), job(command))
    assert done.status == 1
    assert ends in done.result["failure"]["what"]
    assert said in done.result["failure"]["what"]
