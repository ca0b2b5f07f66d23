"""A job of a user who is not root: in a user namespace, and told what it cannot have."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import penstock as package
from penstock.resources.jobs.processes import marked
from tests.support.datasets import of_folder, ours
from tests.support.jobs import job
from tests.support.trees import write_tree
from tests.support.users import NOBODY, User

# Applies manifests, waits for the job `net`, prints what became of it, and deletes everything.
SCRIPT = """
import json, sys
from penstock import api
from penstock.resources.state import State
from penstock.resources.watching import wait_for_job
from penstock.specs.keys import ResourceKey

api.apply(json.loads(sys.argv[1]))
state = State()
found = wait_for_job(state, ResourceKey("TrainingJob", "default", "net"), timeout_s=60)
logs = (state.folder / "jobs" / found.uid / "logs").glob("*.log")
print(json.dumps({
    "uid": found.uid, "status": found.status, "log": "".join(log.read_text() for log in logs),
    "events": [one.reason for one in state.events(found.uid)],
}))
api.delete_keys(state, [one.key for one in state.all()], force=True, wait=True)
"""


def outcome(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, (result.stdout, result.stderr)
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["status"]["phase"] == "SUCCEEDED", found
    return found


def test_where_no_namespace_can_be_made_processes_are_found_by_their_mark() -> None:
    manifest = job("net", "setsid sleep 1000 & echo hi")
    # In a user namespace in which no other can be made, and without capabilities.
    become = "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all"
    program = shlex.join([sys.executable, "-c", SCRIPT, json.dumps(manifest)])
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", f"{become} {program}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = outcome(result)
    assert "NoNamespace" in found["events"]
    assert list(marked(found["uid"])) == []


def test_an_ordinary_user_runs_a_distributed_job_on_a_data_set(user: User) -> None:
    source = user.home / "data"
    write_tree(source, {"a": b"alpha"})
    source.chmod(0o755)
    command = 'echo "$(id -u) $(cat /penstock-data/a) $(ls /proc | grep -c ^[0-9])"'
    data = [{"dataset": "data", "mountPath": "/penstock-data"}]
    net = job("net", command, trainer="mpi", workers=2, memory="1Gi", data=data)
    manifests = json.dumps([of_folder("data", source), ours("data"), net])
    path = str(Path(package.__file__).parent.parent)
    found = outcome(user.run(sys.executable, "-c", SCRIPT, manifests, PYTHONPATH=path))
    lines = [line.split() for line in found["log"].splitlines()]
    assert [line[:2] for line in lines] == [[str(NOBODY), "alpha"]] * 2
    assert all(int(line[2]) < 20 for line in lines)  # of a /proc of its own
    assert "NoNamespace" not in found["events"]
