"""Jobs on data sets, of root and of ordinary users; and where no namespace can be made."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as package
from penstock.api import jobs as jobs_api
from penstock.api import resources as api
from penstock.errors import InUse
from penstock.jobs.processes import marked
from penstock.reconcile.state import State
from tests.support.datasets import of_folder, ours, secret
from tests.support.jobs import Jobs, job
from tests.support.trees import write_tree
from tests.support.users import NOBODY, User

DATA = f"/penstock-job-{os.getpid()}"


@pytest.mark.slow  # needs Open MPI, which `make test` does not install
def test_two_mpi_processes_read_a_data_set_hidden_from_other_processes(
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
from torch.utils.data import DataLoader
assert len(list(DataLoader([1, 2, 3]))) == 3
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_torchruns_reduce_and_publish_plans(imagenet: None, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    found = jobs.run(
        "net",
        [sys.executable, "train.py"],
        trainer="pytorch",
        workers=2,
        workingDir=str(tmp_path),
        data=[{"dataset": "imagenet", "mountPath": DATA, "subPath": "train"}],
        plan=True,
        env=[{"name": "PYTHONPATH", "value": os.environ.get("PYTHONPATH", "")}],
    )
    assert found.status["phase"] == "SUCCEEDED", (found.status, jobs.log("net", "master-0"))
    assert "rank 0 of 2 sum 9" in jobs.log("net", "master-0")
    assert "rank 1 of 2 sum 9" in jobs.log("net", "worker-0")
    waits = jobs_api.job("net").loader_waits  # of both ranks
    assert waits is not None
    assert (waits.processes, waits.batches) == (2, 6)
    assert not Path(DATA).exists()


def test_a_job_waits_for_its_data_set_and_blocks_its_deletion(jobs: Jobs, tmp_path: Path) -> None:
    write_tree(tmp_path / "data", {"a": b"alpha"})
    api.apply(of_folder("imagenet", tmp_path / "data"))
    data = [{"dataset": "imagnet", "mountPath": DATA}]
    jobs.submit("net", f"cat {DATA}/a; sleep 1000", data=data)
    waits = jobs.wait("net", lambda found: found.status.get("phase") == "PENDING").status
    assert waits["message"] == "there is no data set imagnet (did you mean imagenet?)"
    assert "dataReadyTime" not in waits
    api.apply([of_folder("imagnet", tmp_path / "data"), ours("imagnet", tmp_path / "cache")])
    ran = jobs.running("net").status
    assert ran["dataReadyTime"] <= ran["startTime"]
    with pytest.raises(InUse, match="job net is RUNNING and uses it"):
        api.delete("dataset", "imagnet")
    api.delete("job", "net")
    api.delete("dataset", "imagnet")


def test_the_key_of_sealed_secrets_looks_empty_in_a_job(jobs: Jobs) -> None:
    """Also one that was not made yet when the job began."""
    key = State().folder / "secrets.key"
    assert not key.exists()
    command = f"wc -c < {key}; ls {key.parent}/resources.sqlite"
    for name in ("first", "second"):
        jobs.run(name, command)
        assert jobs.log(name).splitlines() == ["0", f"{key.parent}/resources.sqlite"]
        assert key.stat().st_size > 40
        api.apply(secret())


# Applies manifests, waits for the job `net`, prints what became of it, and deletes everything.
SCRIPT = """
import json, sys
from penstock.api import resources as api
from penstock.reconcile.state import State
from penstock.reconcile.waiting import wait_for_job
from penstock.specs.kinds import ResourceKey

api.apply(json.loads(sys.argv[1]))
state = State()
found = wait_for_job(state, ResourceKey("TrainingJob", "default", "net"), timeout_s=60)
logs = (state.folder / "jobs" / found.uid / "logs").glob("*.log")
assert found.status["phase"] == "SUCCEEDED", found
print(json.dumps({
    "uid": found.uid, "log": "".join(log.read_text() for log in logs),
    "events": [one.reason for one in state.events(found.uid)],
}))
api.delete_keys([one.key for one in state.all()], force=True, wait=True)
"""


def outcome(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, (result.stdout, result.stderr)
    return json.loads(result.stdout)


def test_without_namespaces_processes_are_found_by_their_mark() -> None:
    manifest = job("net", "setsid sleep 1000 & echo hi")
    # In a user namespace in which no other can be made, and without capabilities.
    become = "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all"
    program = shlex.join([sys.executable, "-c", SCRIPT, json.dumps(manifest)])
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", f"{become} {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = outcome(result)
    assert "NoNamespace" in found["events"]
    assert list(marked(found["uid"])) == []


def test_the_job_of_an_ordinary_user_cannot_reveal_the_key(user: User) -> None:
    key = user.home / "state/secrets.key"
    again = f"unshare --user --map-root-user --mount sh -c 'umount {key}; wc -c < {key}'"
    command = f"id -u; umount {key} 2>/dev/null || wc -c < {key}; {again} 2>/dev/null"
    path = str(Path(package.__file__).parent.parent)
    manifest = json.dumps(job("net", command))
    found = outcome(user.run(sys.executable, "-c", SCRIPT, manifest, PYTHONPATH=path))
    assert "NoNamespace" not in found["events"]
    assert found["log"].split() == [str(NOBODY), "0", "0"]
    assert key.stat().st_size > 40


@pytest.mark.slow  # needs Open MPI, which `make test` does not install
def test_an_ordinary_user_runs_a_distributed_job_on_a_data_set(user: User) -> None:
    source = user.home / "data"
    write_tree(source, {"a": b"alpha"})
    source.chmod(0o755)
    command = f'echo "$(id -u) $(cat {DATA}/a) $(ls /proc | grep -c ^[0-9])"'
    data = [{"dataset": "data", "mountPath": DATA}]
    net = job("net", command, trainer="mpi", workers=2, memory="1Gi", data=data)
    manifests = json.dumps([of_folder("data", source), ours("data"), net])
    path = str(Path(package.__file__).parent.parent)
    found = outcome(user.run(sys.executable, "-c", SCRIPT, manifests, PYTHONPATH=path))
    first, second = [line.split() for line in found["log"].splitlines()]
    assert first[:2] == second[:2] == [str(NOBODY), "alpha"]
    assert int(first[2]) < 20  # processes, of a /proc of its own
    assert "NoNamespace" not in found["events"]
