"""The commands for training jobs, on jobs that run."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from penstock.api import resources as api
from penstock.cli.app import run
from penstock.jobs.job_folder import job_folder
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support.datasets import of_folder, ours, stored
from tests.support.mounts import penstock
from tests.support.trees import write_tree
from tests.support.waiting import PATIENCE_S, wait_until

Says = Callable[..., tuple[int, str, str]]


@pytest.fixture
def says(declared: State, capfdbinary: pytest.CaptureFixture[bytes]) -> Says:
    """says("list -A") is the exit code, stdout and stderr of `penstock list -A`."""

    def ask(line: str, *words: str) -> tuple[int, str, str]:
        code = run([*shlex.split(line), *words])
        output = capfdbinary.readouterr()
        return code, output.out.decode(), output.err.decode()

    return ask


def job(state: State, name: str, namespace: str = "default") -> Stored:
    return stored(state, ResourceKey("TrainingJob", namespace, name))


def heard(terminal: int, until: str) -> str:
    """What is written there, up to these words."""
    output = ""
    ready = select.poll()  # select() takes no descriptor above 1023
    ready.register(terminal, select.POLLIN)
    while until not in output:
        assert ready.poll(PATIENCE_S * 1000), f"not heard in {output!r}"
        output += os.read(terminal, 1).decode()
    return output


def test_a_job_runs_from_submit_to_delete(says: Says, declared: State, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    write_tree(tmp_path / "source", {"hello": b"what the data set holds\n"})
    api.apply([of_folder("words", tmp_path / "source"), ours("words")])
    script = f"cat /penstock-data/hello; until [ -e {gate} ]; do sleep 0.05; done; echo bye"

    code, out, err = says("submit tf --name story --ps 1 -d words:/penstock-data", script)
    assert (code, out) == (0, "trainingjob.penstock.dev/story created\n")
    assert "running in the background; check it with `penstock get job story`" in err

    def phases() -> list[str]:
        return [one["phase"] for one in job(declared, "story").status.get("instances", [])]

    wait_until(lambda: phases() == ["RUNNING", "RUNNING"])
    wait_until(lambda: "holds" in says("logs story")[1])
    assert not Path("/penstock-data").exists()

    title, row = (" ".join(line.split()) for line in says("list")[1].splitlines()[:2])
    assert title == "NAME STATUS TRAINER DURATION GPU(Requested) GPU(Allocated) NODE"
    assert row.startswith("story RUNNING TFJOB ")
    shown = says("get job story")[1]
    assert "Status:     RUNNING" in shown
    instances = [line.split() for line in shown.splitlines() if line.startswith("  story-")]
    assert [(one[0], one[1], one[3]) for one in instances] == [
        ("story-ps-0", "RUNNING", "false"),
        ("story-worker-0", "RUNNING", "true"),
    ]

    inside = penstock(
        "attach", "story", "-i", "worker-0", "--", "sh", "-c", "cat /penstock-data/hello; exit 7"
    )
    assert (inside.returncode, inside.stdout) == (7, "what the data set holds\n"), inside.stderr
    used = json.loads(says("top job story -o json")[1])
    assert used["processes"] >= 3  # its init, and two shells
    node = says("top node")[1]
    assert ("story" in node, "words" in node) == (True, True)

    assert says("delete dataset words")[0] == 2
    gate.touch()
    code, out, err = says("logs story -f --tail 1")
    assert (code, out[-4:]) == (0, "bye\n")
    assert err.startswith("job story SUCCEEDED after ")
    assert says("logs story")[1] == "what the data set holds\nbye\n"
    assert says("attach story")[0] == 2
    assert says("delete job story") == (0, "trainingjob/story deleted\n", "")
    assert list((declared.folder / "jobs").iterdir()) == []


def test_waiting_ends_with_the_job_and_reports_its_outcome(says: Says) -> None:
    code, out, err = says("submit tf --name fails --retry 1 --wait", "echo so; exit 3")
    assert (code, out) == (4, "trainingjob.penstock.dev/fails created\n")
    steps = err.splitlines()
    assert "attempt 1: worker-0 ended with exit code 3; " in says("describe job fails")[1]
    assert steps[-2].startswith("penstock: job fails: worker-0 ended with exit code 3")
    assert steps[-1] == "hint: penstock logs fails --tail 50"
    output = says("logs fails")
    lines = output[1].splitlines()
    assert (lines[0], lines[2]) == ("so", "so")
    assert lines[1].startswith("--- attempt 2 at ")
    assert output[2].startswith("job fails FAILED after ")
    assert "Attempts:   2" in says("get job fails")[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("../evil:/d", "--data: '..' is not a namespace"),
        ("evil..:/d", "--data: 'evil..' is not a name"),
        ("words:/etc", "--data: '/etc' is a folder of the system"),
        ("words:/d/../../etc", "has .. in it"),
        ("word:/d", "--data: there is no data set word (did you mean words?)"),
        ("team/words:/d", "--data: there is no data set team/words (there is one in the namespace"),
    ],
)
def test_a_job_with_impossible_data_is_rejected_at_submit(
    says: Says, declared: State, tmp_path: Path, data: str, message: str
) -> None:
    api.apply(of_folder("words", tmp_path))
    for more in ("", " --dry-run"):
        code, out, err = says(f"submit tf --name one -d {data}{more}", "true")
        assert (code, out) == (2, "")
        assert message in err
        assert "\nhint: " in err
    assert declared.all(["TrainingJob"]) == []


def test_a_job_waits_for_its_data_and_its_watcher_may_leave(
    says: Says, declared: State, tmp_path: Path
) -> None:
    api.apply(of_folder("none", tmp_path))  # no runtime, so it is not bound
    terminal, end = pty.openpty()
    watcher = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock",
            *shlex.split("submit tf --name waits -d none:/d"),
            "--wait",
            "true",
        ],
        stderr=end,
        stdout=subprocess.DEVNULL,
    )
    os.close(end)
    line = "\r\x1b[Kwaits: PENDING, data set none"
    assert heard(terminal, "data set none").endswith(line)
    watcher.send_signal(signal.SIGINT)
    left = "\r\x1b[Krunning in the background; check it with `penstock get job waits`"
    assert heard(terminal, "job waits`").endswith(left)
    assert watcher.wait(PATIENCE_S) == 130
    os.close(terminal)
    assert job(declared, "waits").status["phase"] == "PENDING"
    code, out, err = says("logs waits")
    assert (code, out) == (0, "")
    why = "data set none is not bound"
    assert err.startswith(f"job waits is PENDING, and has printed nothing yet: {why}")
    assert "hint: -- comes before a command" in says("attach waits ls -l")[2]


def test_a_name_is_unique_among_jobs_and_ended_ones_are_pruned(
    says: Says, declared: State, tmp_path: Path
) -> None:
    api.apply(of_folder("none", tmp_path))
    line = "submit tf --name one -n team -d default/none:/d"
    code, out, _ = says(f"{line} --dry-run -o yaml", "echo", "a  b")
    assert (code, declared.all(["TrainingJob"])) == (0, [])
    assert yaml.safe_load(out)["spec"]["command"] == ["echo", "a  b"]
    assert says(line, "true")[0] == 0
    wait_until(lambda: job(declared, "one", "team").status.get("phase") == "PENDING")
    code, _, err = says(line, "false")
    assert code == 2
    assert err.splitlines() == [
        "penstock: there is a job one already, and it is PENDING",
        "hint: choose another name, or `penstock delete job one -n team` first",
    ]
    assert "hint: there is one in the namespace team: -n team" in says("logs one")[2]
    hint = says("describe one x -n team")[2].splitlines()[1]
    assert hint == "hint: there is a job of that name: `penstock describe job one -n team`"
    shown = json.loads(says("list -A -o json")[1])["items"]
    assert [one["metadata"]["name"] for one in shown] == ["one"]

    assert says("submit tf --name done --wait", "true")[0] == 0
    folder = job_folder(declared.folder, job(declared, "done").uid)
    assert folder.exists()
    assert says("prune --since 1h") == (0, "", "no job has ended 1h ago or earlier\n")
    assert says("prune") == (0, "trainingjob/done deleted\n", "")
    assert [one.key.name for one in declared.all(["TrainingJob"])] == ["one"]
    assert not folder.exists()
