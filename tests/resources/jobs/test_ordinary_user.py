"""A job of a user who is not root: in a user namespace, and told what it cannot have."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import penstock as package
from penstock.resources.jobs.processes import marked
from tests.conftest import write_tree
from tests.mount.test_ordinary_user import UID, User, user

__all__ = ["user"]  # a fixture

SCRIPT = """
import json, os, sys
from penstock import api
from penstock.resources.state import State
from penstock.resources.watching import wait_for_job
from penstock.specs.keys import ResourceKey

folder, command = sys.argv[1:]
api.apply([
    {"apiVersion": "penstock.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": "data"},
     "spec": {"mounts": [{"mountPoint": f"local://{folder}", "name": "data", "path": "/"}]}},
    {"apiVersion": "penstock.dev/v1alpha1", "kind": "PenstockRuntime",
     "metadata": {"name": "data"}, "spec": {}},
    {"apiVersion": "penstock.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "net"},
     "spec": {"trainer": "mpi", "workers": 2, "command": command, "memory": "1Gi",
              "data": [{"dataset": "data", "mountPath": "/penstock-data"}]}},
])
state = State()
found = wait_for_job(state, ResourceKey("TrainingJob", "default", "net"), timeout_s=60)
log = state.folder / "jobs" / found.uid / "logs" / "net-launcher.log"
events = [one.reason for one in state.events(found.uid)]
print(json.dumps([found.status, log.read_text() if log.exists() else None, events]))
api.delete("job", "net")
api.delete("dataset", "data")
api.delete("penstockruntime", "data")
"""


WITHOUT = """
import json, sys
from penstock import api
from penstock.resources.state import State
from penstock.resources.watching import wait_for_job
from penstock.specs.keys import ResourceKey

api.apply({"apiVersion": "penstock.dev/v1alpha1", "kind": "TrainingJob",
           "metadata": {"name": "net"},
           "spec": {"trainer": "tf", "command": "setsid sleep 1000 & echo hi"}})
state = State()
found = wait_for_job(state, ResourceKey("TrainingJob", "default", "net"), timeout_s=60)
print(json.dumps([found.uid, found.status["phase"],
                  [one.reason for one in state.events(found.uid)]]))
api.delete("job", "net")
"""


def test_where_no_namespace_can_be_made_processes_are_found_by_their_mark() -> None:
    # In a user namespace in which no other can be made, by one who may do nothing.
    become = "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all"
    program = shlex.join([sys.executable, "-c", WITHOUT])
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", f"{become} {program}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout, result.stderr)
    uid, phase, events = json.loads(result.stdout)
    assert phase == "SUCCEEDED"
    assert "NoNamespace" in events
    assert list(marked(uid)) == []


def test_an_ordinary_user_runs_a_distributed_job_on_a_data_set(user: User) -> None:
    source = user.home / "data"
    write_tree(source, {"a": b"alpha"})
    source.chmod(0o755)
    path = str(Path(package.__file__).parent.parent)
    command = 'echo "$(id -u) $(cat /penstock-data/a) $(ls /proc | grep -c ^[0-9])"'
    result = user.run(sys.executable, "-c", SCRIPT, source, command, PYTHONPATH=path)
    assert result.returncode == 0, (result.stdout, result.stderr)
    status, log, events = json.loads(result.stdout)
    assert status["phase"] == "SUCCEEDED", (status, log)
    lines = [line.split() for line in log.splitlines()]
    assert [line[:2] for line in lines] == [[str(UID), "alpha"]] * 2
    assert all(int(line[2]) < 20 for line in lines)  # of a /proc of its own
    assert "NoNamespace" not in events
