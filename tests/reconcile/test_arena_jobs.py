"""arena's verbs on a job that has run, and the rows of the guide that name one."""

import json
import re
from pathlib import Path

import pytest

from penstock.api import resources as api
from penstock.reconcile.state import State
from tests.support.datasets import of_folder
from tests.support.mounts import penstock, succeed
from tests.support.refusals import one_refusal
from tests.support.trees import write_tree

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "jobs.md"


def shown(*arguments: str) -> str:
    """`logs` writes bytes to the stdout of its process."""
    return succeed(*arguments, env=None)


def meanings(line: str) -> str:
    found = re.search(rf"^\| `{re.escape(line)}` \| (.+) \|$", GUIDE.read_text(), re.M)
    assert found is not None, line
    return found[1]


@pytest.mark.usefixtures("declared")
def test_arenas_verbs_show_a_job_that_has_run() -> None:
    succeed("submit", "tf", "--name", "job", "--wait", "seq 20")
    lines = "".join(f"{number}\n" for number in range(1, 21))
    assert meanings("arena logs JOB -n 10") == "a number is `--tail`, anything else a namespace"
    assert shown("log", "job", "-n", "10") == lines[lines.index("11\n") :]
    assert shown("logs", "job", "-n", "default", "-c", "main", "--tail=1") == "20\n"
    assert "in the namespace team" in one_refusal(["logs", "job", "-n", "team"], says="no job")

    assert shown("logs", "job", "--since", "1h") == lines
    assert shown("logs", "job", "--since-time", "2020-01-01T00:00:00Z", "-t", "1") == "20\n"
    assert shown("logs", "job", "--since-time", "2999-01-01T00:00:00Z") == ""
    one_refusal(["logs", "job", "--since", "1h", "--since-time", "x"], says="cannot both be given")
    one_refusal(["logs", "job", "--since-time", "noon"], says="'noon' is not a time")

    for verb in ("get", "delete"):
        error = one_refusal([verb, "job2"], says="job2")
        succeed("submit", "tf", "--name", "job2", "--wait", "true")
        error = one_refusal([verb, "job2"], says="job2")
        assert meanings(f"arena {verb} JOB").replace("JOB", "job2") in error
        succeed("delete", "job", "job2")

    usage = json.loads(succeed("top", "job", "job", "-i", "worker-0", "-o", "json"))
    assert [one["name"] for one in usage["instances"]] == ["job-worker-0"]
    one_refusal(["top", "job", "job", "-i", "ps-0"], says="has no instance ps-0")
    assert "job" in succeed("ls", "--allNamespaces", "--loglevel", "debug")
    assert succeed("top", "node", "-d", "--trace=true") != ""


@pytest.mark.usefixtures("declared")
def test_data_list_shows_data_sets_as_arena_shows_volumes(tmp_path: Path) -> None:
    said = penstock("data", "list")
    assert said.stderr == "no data sets are declared in the namespace default\n"
    write_tree(tmp_path / "source", {"hello": b"x"})
    dataset = of_folder("mnist", tmp_path)
    api.apply(dataset)
    titles, row = succeed("data", "list").splitlines()
    assert titles.split() == ["NAME", "ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]
    assert row.split()[:2] == ["mnist", "ReadOnlyMany"]
    assert succeed("data", "list", "--allNamespaces").split()[6:8] == ["default", "mnist"]


@pytest.mark.usefixtures("declared")
def test_a_log_without_times_is_shown_whole(declared: State) -> None:
    succeed("submit", "tf", "--name", "old", "--wait", "seq 3")
    (times,) = (declared.folder / "jobs").glob("*/logs/*.times")
    times.unlink()
    assert shown("logs", "old", "--since", "1s") == "1\n2\n3\n"
