"""penstock submit: arena's command lines become manifests, or are refused in the same words."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.specs.documents import read
from tests.support.mounts import penstock, succeed
from tests.support.refusals import one_refusal

SEED = shlex.split("""mpi --name horovod-resnet50 --gpus=8 --workers=4
--working-dir=/horovod-demo/tensorflow-demo/ --data imagenet:/data -e DATA_DIR=/data/imagenet
-e num_batch=1000 -e datasets_num_private_threads=8 --image=horovod-benchmark-dawnbench-v2:0.18.1
""")


@pytest.fixture(autouse=True)
def shell(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state of its own, and a shell of which two variables are carried into a job."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/venv/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manifest(*arguments: str) -> dict[str, Any]:
    """What --dry-run -o yaml prints, which is a manifest that `apply` can read."""
    trainer, *rest = arguments
    printed = succeed("submit", trainer, "--dry-run", "-o", "yaml", *rest)
    (document,) = read(printed, "stdout")
    assert document.resource.kind == "TrainingJob"
    return yaml.safe_load(printed)


def spec(*arguments: str) -> dict[str, Any]:
    return manifest(arguments[0], "--name", "n", *arguments[1:])["spec"]


def test_a_published_arena_command_line_is_accepted() -> None:
    script = "./launch-example.sh"
    assert manifest(*SEED, script, "4", "8")["spec"]["command"] == [script, "4", "8"]
    found = manifest(*SEED, f"{script} 4 8")
    assert found["metadata"] == {"name": "horovod-resnet50"}
    assert found["spec"] == {
        "trainer": "mpi",
        "workers": 4,
        "gpus": 8,
        "command": f"{script} 4 8",
        "workingDir": "/horovod-demo/tensorflow-demo/",
        "data": [{"dataset": "imagenet", "mountPath": "/data"}],
        "env": [
            {"name": "DATA_DIR", "value": "/data/imagenet"},
            {"name": "num_batch", "value": "1000"},
            {"name": "datasets_num_private_threads", "value": "8"},
        ],
        "image": "horovod-benchmark-dawnbench-v2:0.18.1",
    }


def test_a_command_is_found_as_the_shell_finds_it(shell: Path) -> None:
    found = spec("pytorch", "-e", "EPOCHS=3", "python", "train.py", "--lr", "a b")
    assert found == {
        "trainer": "pytorch",
        "workers": 1,
        "command": ["python", "train.py", "--lr", "a b"],
        "workingDir": str(shell),
        "env": [{"name": "PATH", "value": "/venv/bin:/usr/bin"}, {"name": "EPOCHS", "value": "3"}],
    }
    assert spec("mpi", "--working-dir", "code", "-e", "PATH=/bin", "x") == {
        "trainer": "mpi",
        "workers": 1,
        "command": "x",
        "workingDir": f"{shell}/code",
        "env": [{"name": "PATH", "value": "/bin"}],
    }


def test_every_option_is_a_field_under_all_its_arena_names() -> None:
    found = manifest(
        "mpi",
        "--name",
        "n",
        "-n",
        "team",
        "-d",
        "other/ds:/a:train",
        "--data",
        "ds:/b",
        "--cpu",
        "500m",
        "--memory",
        "4Gi",
        "--launch",
        "ranks",
        "--warm",
        "--plan",
        "--retry",
        "2",
        "--timeout",
        "2h22m",
        "--ttl",
        "0",
        "-p",
        "-3",
        "-l",
        "a=b",
        "-a",
        "c=d=e",
        "--shell",
        "bash",
        "echo {1..3}",
    )
    assert found["metadata"] == {
        "name": "n",
        "namespace": "team",
        "labels": {"a": "b"},
        "annotations": {"c": "d=e"},
    }
    del found["spec"]["workingDir"], found["spec"]["env"]
    assert found["spec"] == {
        "trainer": "mpi",
        "workers": 1,
        "command": ["bash", "-c", "echo {1..3}"],
        "data": [
            {"dataset": "ds", "mountPath": "/a", "namespace": "other", "subPath": "train"},
            {"dataset": "ds", "mountPath": "/b"},
        ],
        "cpu": "500m",
        "memory": "4Gi",
        "priority": -3,
        "warm": True,
        "plan": True,
        "launch": "ranks",
        "retries": 2,
        "timeoutSeconds": 8520,
        "ttlSecondsAfterFinished": 0,
    }
    found = spec(
        "tfjob",
        "--ps-count",
        "1",
        "--worker-cpu",
        "2",
        "--workerMemory=1Gi",
        "--workingDir",
        "/w",
        "--running-timeout",
        "5s",
        "--ttl-after-finished=1m",
        "x",
    )
    assert (
        found.items()
        >= {
            "trainer": "tf",
            "ps": 1,
            "cpu": "2",
            "memory": "1Gi",
            "workingDir": "/w",
            "timeoutSeconds": 5,
            "ttlSecondsAfterFinished": 60,
        }.items()
    )


def test_ignored_options_are_reported_once_for_each_reason() -> None:
    words = "submit tf --name n --dry-run -o json --gang --selector a=b --toleration all --rdma "
    result = penstock(*words.split(), "--chief", "--syncMode=git", "x")
    assert json.loads(result.stdout)["kind"] == "TrainingJob"
    assert result.stderr.splitlines() == [
        "no effect here: --selector, --toleration (one machine is the only node)",
        "no effect here: --gang (a job's instances start together)",
        "no effect here: --rdma "
        "(the processes of a job share this machine's network and processes)",
        "no effect here: --sync-mode (code is not fetched; --working-dir says where it is)",
        "no effect here: --chief (the first worker is the chief)",
    ]


def test_a_value_that_looks_secret_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    result = penstock(*shlex.split("submit mpi --name n --dry-run -o yaml -e WANDB_API_KEY x"))
    assert "hunter2" not in result.stdout + result.stderr
    hidden = {"name": "WANDB_API_KEY", "value": "<hidden>"}
    assert hidden in yaml.safe_load(result.stdout)["spec"]["env"]
    assert "write them in" in result.stderr


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        ("mpo --name n x", "'mpo' is not a trainer", "did you mean mpi?"),
        ("mpi x", "--name is missing", "--name resnet"),
        ("mpi x --name n", "--name is missing", "options come before the command"),
        ("mpi --name n --data imagenet x", "--data: 'imagenet' is not", "imagenet:/data"),
        ("mpi --name n --data a:/proc/x x", "--data: '/proc/x' is a folder", "/data"),
        ("mpi --name n -d a:/d -d b:/d/e x", "--data: /d/e is inside /d", "separate paths"),
        ("mpi --name n -e NOT_SET x", "--env: NOT_SET is not in your environment", "NOT_SET=VALUE"),
        ("mpi --name n --memory lots x", "--memory: 'lots' is not a quantity", "150Gi"),
        ("mpi --name n --image i --data-dir /a x", "cannot be put into an image", "--data puts"),
        ("mpi --name n", "Missing argument 'COMMAND...'", "submit mpi --help"),
    ],
)
def test_a_mistake_is_reported_under_the_option_that_has_it(
    words: str, what: str, hint: str
) -> None:
    output = one_refusal(["submit", *words.split()], says=re.escape(what))
    assert hint in output.splitlines()[1]
