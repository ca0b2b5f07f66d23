"""arena's command lines: each of its options is known, and each difference is a row of the guide.

The options are those of arena 0.15.5, as pkg/argsbuilder and pkg/commands of its source define
them.
"""

import re
import time
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from penstock.api.jobs import offset_since
from penstock.cli import arena
from penstock.cli.app import app
from penstock.cli.submit_flags import OF_ALL, OF_ONE, TRAINERS, our_name
from penstock.jobs.attempt_keeper import Log
from penstock.jobs.log_times import times_path
from tests.support.mounts import penstock, succeed
from tests.support.refusals import one_refusal

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "jobs.md"

_OF_SUBMIT = """name image gpus device workers retry workingDir working-dir env data dataDir
data-dir annotation label rdma gang priority queue toleration selector config-file image-pull-secret
image-pull-secrets image-pull-policy shell scheduler hostNetwork hostIPC hostPID model-name
model-source tensorboard tensorboardImage tensorboard-image logdir syncMode sync-mode syncSource
sync-source syncImage sync-image namespace arena-namespace config loglevel trace pprof helm-binary
"""
_OF_TRAINER = {
    "mpi": "cpu memory gputopology mounts-on-launcher clean-task-policy",
    "pytorch": "clean-task-policy cpu memory running-timeout ttl-after-finished share-memory "
    "nproc-per-node",
    "horovod": "ssh-port cpu memory",
    "tf": """workerImage worker-image psImage ps-image ps psPort ps-port workerPort worker-port
    workerCpu worker-cpu worker-cpu-limit workerMemory worker-memory worker-memory-limit
    worker-affinity-policy worker-affinity-constraint psCpu ps-cpu ps-cpu-limit ps-gpus psMemory
    ps-memory ps-memory-limit ps-affinity-policy ps-affinity-constraint success-policy
    cleanTaskPolicy clean-task-policy running-timeout starting-timeout ttl-after-finished chief
    evaluator ChiefCpu chief-cpu chief-cpu-limit ChiefMemory chief-memory chief-memory-limit
    evaluatorCpu evaluator-cpu evaluator-cpu-limit evaluatorMemory evaluator-memory
    evaluator-memory-limit chiefPort chief-port worker-selector chief-selector evaluator-selector
    ps-selector role-sequence share-memory""",
}
_CLUSTER = " --arena-namespace --config --loglevel --trace --pprof --helm-binary --namespace"
_OF_COMMAND = {
    "list": "-T --type --allNamespaces -A --all-namespaces -o --output -n" + _CLUSTER,
    "logs": "-f --follow -t --tail -i --instance -c --container --since --since-time --timestamps "
    "-T --type -n" + _CLUSTER,
    "attach": "-i --instance -c --container -T --type -n" + _CLUSTER,
    "prune": "-s --since -A --all-namespaces -n" + _CLUSTER,
    "top job": "--allNamespaces -A --all-namespaces -o --output -r --refresh -i --instance -T "
    "--type -n" + _CLUSTER,
    "top node": "-d --details -r --refresh -m --gpu-mode -o --output --metric" + _CLUSTER,
    "get": "-T --type -e --events -g --gpus -o --output -n --namespace",
    "delete": "-T --type -n --namespace",
    "data list": "--allNamespaces -n" + _CLUSTER,
}


@pytest.fixture(autouse=True)
def empty_machine(state: Path) -> Path:
    return state


def command(path: str) -> click.Command:
    found: click.Command = app
    for word in path.split():
        assert isinstance(found, click.Group)
        child = found.get_command(click.Context(found), word)
        assert child is not None, path
        found = child
    return found


@pytest.mark.parametrize("trainer", TRAINERS)
def test_submit_knows_every_option_that_arena_has(trainer: str) -> None:
    known = {name for one in command(f"submit {trainer}").params for name in one.opts}
    options = (_OF_SUBMIT + _OF_TRAINER[trainer]).split()
    assert [name for name in options if f"--{our_name(name)}" not in known] == []


@pytest.mark.parametrize("path", _OF_COMMAND)
def test_other_commands_know_arenas_options_or_say_where_they_are(path: str) -> None:
    known = {name for one in command(path).params for name in one.opts} | {"--allNamespaces"}
    elsewhere = arena.OPTIONS.get(path, {})
    options = _OF_COMMAND[path].split()
    assert [name for name in options if name not in known and name not in elsewhere] == []


# -- the guide's tables -------------------------------------------------------------------------


def rows(title: str) -> list[tuple[str, str]]:
    """The rows of the table with this title, without its first two lines."""
    table = GUIDE.read_text().split(f"\n| {title} |")[1].split("\n\n")[0]
    found = [re.fullmatch(r"\| (.+) \| (.+) \|", line) for line in table.splitlines()[2:]]
    return [(one[1], one[2]) for one in found if one]


@pytest.mark.parametrize(("options", "why"), rows("option of `arena submit`"))
def test_an_option_without_effect_is_accepted_and_says_why(options: str, why: str) -> None:
    of, _, _ = options.rpartition(": ")
    trainer = of or "mpi"
    for option in re.findall(r"`([^`]+)`", options):
        known = {name: takes for name, takes, _ in (*OF_ALL, *OF_ONE.get(trainer, ()))}
        value = ["x"] if known[option] else []
        said = penstock("submit", trainer, "--name", "n", "--dry-run", option, *value, "true")
        assert (said.returncode, said.stderr) == (0, f"no effect here: {option} ({why})\n")


def test_every_option_without_effect_is_a_row() -> None:
    listed = {
        (options.rpartition(": ")[0], option, why)
        for options, why in rows("option of `arena submit`")
        for option in re.findall(r"`([^`]+)`", options)
    }
    of_all = {("", name, why) for name, _, why in OF_ALL}
    assert listed == of_all | {
        (trainer, name, why) for trainer, some in OF_ONE.items() for name, _, why in some
    }


@pytest.mark.parametrize(("lines", "says"), rows("arena | Penstock says"))
def test_what_has_no_place_here_says_what_to_use(lines: str, says: str) -> None:
    for line in re.findall(r"`arena ([^`]+)`", lines):
        error = one_refusal(line.split(), says="^penstock: ")
        assert error.splitlines()[1] == "hint: " + says


def test_all_that_has_no_place_here_is_a_row() -> None:
    listed = {
        line
        for lines, _ in rows("arena | Penstock says")
        for line in re.findall(r"`arena ([^`]+)`", lines)
    }
    assert listed == {
        *arena.COMMANDS,
        *(f"submit {name}" for name in arena.TRAINERS),
        *(f"{path} {option}" for path, some in arena.OPTIONS.items() for option in some),
        "serve custom",
    }


# How each row of the table of other meanings is tried: what is written for `…`, and the code.
_MEANINGS = {line: says for lines, says in rows("arena | here") for line in [lines.strip("`")]}


@pytest.mark.parametrize("line", [line for line in _MEANINGS if line.startswith("arena submit")])
def test_an_option_with_another_meaning_is_used_or_refused_as_the_guide_says(
    line: str, state: Path
) -> None:
    words = line.split()[1:]
    says = _MEANINGS[line]
    if "COMMAND" in words:
        error = one_refusal(words, says="--name is missing")
        assert error.splitlines()[1] == f"hint: {says}"
        return
    arguments = [*words, "--name", "n", "--dry-run", "-o", "yaml", "true"]
    if "nvidia.com/gpu=2" in words:
        assert yaml.safe_load(succeed(*arguments))["spec"]["gpus"] == 2
        return
    if "critical" in words:
        hint = one_refusal(arguments, says="'critical' is neither a number nor").splitlines()[1]
        assert "[priority-classes]" in hint
        path = state / ".config" / "penstock" / "config.toml"
        path.parent.mkdir(parents=True)
        path.write_text("[priority-classes]\ncritical = 7\n")
        assert yaml.safe_load(succeed(*arguments))["spec"]["priority"] == 7
        return
    assert says.partition(":")[0] in one_refusal(arguments, says="^penstock: --")


# -- flags as in Go -----------------------------------------------------------------------------


def spec(*arguments: str) -> dict[str, Any]:
    lines = succeed("submit", *arguments[:1], "--name", "n", "--dry-run", "-o", "yaml",
                    *arguments[1:])  # fmt: skip
    return yaml.safe_load(lines)["spec"]


@pytest.mark.parametrize("value", ["true", "True", "1", "t"])
def test_a_flag_may_be_set_as_in_go(value: str) -> None:
    assert spec("mpi", f"--warm={value}", "true")["warm"] is True
    said = penstock("submit", "mpi", "--name", "n", "--dry-run", f"--hostNetwork={value}", "true")
    assert "no effect here: --hostNetwork" in said.stderr


@pytest.mark.parametrize("value", ["false", "FALSE", "0", "f"])
def test_a_flag_may_be_unset_as_in_go(value: str) -> None:
    assert "warm" not in spec("mpi", f"--warm={value}", "true")
    said = penstock("submit", "mpi", "--name", "n", "--dry-run", f"--rdma={value}", "true")
    assert (said.returncode, said.stderr) == (0, "")
    assert penstock("list", f"--all-namespaces={value}").stderr == (
        "no jobs in the namespace default\n"
    )


def test_only_flags_are_read_as_in_go() -> None:
    found = spec("mpi", "--working-dir", "--warm=true", "prog", "--plan=true", "--warm=false")
    assert found["command"] == ["prog", "--plan=true", "--warm=false"]
    assert found["workingDir"].endswith("/--warm=true")
    assert "warm" not in found
    one_refusal(["submit", "mpi", "--name", "n", "--warm=yes", "true"], says="not take a value")


# -- the times of a log ---------------------------------------------------------------------------


def test_lines_of_a_log_are_found_by_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker-0.log"
    now_s = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    log = Log(path, 64 * 1024)
    for number in range(20_000):
        now_s = 1_000_000.0 + number // 10
        log.take(b"line %06d\n" % number)
    log.close()
    text = path.read_bytes()
    assert b"bytes are missing here" in text
    assert offset_since(path, 0) == 0
    for number in (100, 1500, 19_000, 19_990):
        offset = offset_since(path, 1_000_000.0 + number // 10)
        assert text[offset:].startswith(b"line %06d\n" % number), number
    missing = offset_since(path, 1_000_000.0 + 500)
    assert text[:missing].endswith(b"bytes are missing here ---\n")
    assert offset_since(path, now_s + 60) == len(text)
    times_path(path).unlink()
    assert offset_since(path, now_s) == 0
