"""Jobs on data sets: distributed, over a real mount of a real bucket."""

import os
import sys
from pathlib import Path

import pytest

from penstock import api
from penstock.errors import InUse
from tests.support.datasets import of_folder, ours
from tests.support.jobs import Jobs
from tests.support.trees import write_tree

DATA = f"/penstock-job-{os.getpid()}"


def test_two_mpi_processes_read_a_data_set_that_nobody_else_sees(
    imagenet: None, jobs: Jobs
) -> None:
    command = (
        f"test $OMPI_COMM_WORLD_RANK = 0 && read=a || read=b; touch {DATA}/new 2>/dev/null || "
        f'echo "$(cat {DATA}/train/$read)-read-only"; test $OMPI_COMM_WORLD_SIZE = 2'
    )
    data = [{"dataset": "imagenet", "mountPath": DATA}]
    found = jobs.run("net", command, trainer="mpi", workers=2, data=data, warm=True)
    assert found.status["phase"] == "SUCCEEDED", found.status
    log = jobs.log("net", "launcher")
    assert sorted(log.split()) == ["alpha-read-only", "beta-read-only"]
    assert not Path(DATA).exists()
    assert "Loaded" in jobs.events("net")
    assert api.dataset("imagenet").cached_bytes == 14


TRAIN = f"""
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
names = sorted(os.listdir("{DATA}"))
mine = len(open(f"{DATA}/{{names[dist.get_rank()]}}", "rb").read())
total = torch.tensor([mine])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", int(total), flush=True)
from penstock.integrations.plans import open_plan
with open_plan([f"{DATA}/{{name}}" for name in names]) as plan:
    plan.extend([1, 0])
    plan.reached(2)
    assert plan.problems() is None, plan.problems()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_torchruns_reduce_what_they_read_and_can_hand_in_a_plan(
    imagenet: None, jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    found = jobs.run(
        "net", [sys.executable, "train.py"], trainer="pytorch", workers=2, workingDir=str(tmp_path),
        data=[{"dataset": "imagenet", "mountPath": DATA, "subPath": "train"}], plan=True,
        env=[{"name": "PYTHONPATH", "value": os.environ.get("PYTHONPATH", "")}],
    )  # fmt: skip
    assert found.status["phase"] == "SUCCEEDED", (found.status, jobs.log("net", "master-0"))
    assert "rank 0 of 2 sum 9" in jobs.log("net", "master-0")
    assert "rank 1 of 2 sum 9" in jobs.log("net", "worker-0")
    assert not Path(DATA).exists()


def test_a_job_waits_for_its_data_set_and_keeps_it_from_being_deleted(
    jobs: Jobs, tmp_path: Path
) -> None:
    write_tree(tmp_path / "data", {"a": b"alpha"})
    api.apply(of_folder("imagenet", tmp_path / "data"))
    missing = {
        "small": "there is no data set small",
        "imagnet": "there is no data set imagnet (did you mean imagenet?)",
    }
    for name, message in missing.items():
        data = [{"dataset": name, "mountPath": DATA}]
        jobs.submit(name, f"cat {DATA}/a; sleep 1000", data=data)
        waits = jobs.wait(name, lambda found: found.status.get("phase") == "PENDING").status
        assert waits["message"] == message
    api.apply([of_folder("small", tmp_path / "data"), ours("small", tmp_path / "cache")])
    jobs.running("small")
    with pytest.raises(InUse, match="job small is RUNNING and uses it"):
        api.delete("dataset", "small")
    api.delete("job", "small")
    api.delete("dataset", "small")


def test_a_queued_job_whose_data_is_changed_is_loaded_again(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GPUS", "1")
    write_tree(tmp_path / "data", {"a/x": b"alpha", "b/x": b"beta"})
    api.apply([of_folder("small", tmp_path / "data"), ours("small", tmp_path / "cache")])
    jobs.submit("first", "sleep 1000", gpus=1)
    jobs.running("first")
    (uid,) = [one.uid for one in jobs.state.all(["Dataset"])]
    for below in ("a", "b"):
        data = [{"dataset": "small", "mountPath": DATA, "subPath": below}]
        jobs.submit("net", "true", gpus=1, warm=True, data=data)
        wanted = [[uid, below]]
        jobs.wait("net", lambda found, wanted=wanted: found.note.get("loaded") == wanted)
    assert api.dataset("small").cached_bytes == 9
