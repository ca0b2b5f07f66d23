"""Completion, defaults from the environment and the configuration file, help and version."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import which

import pytest
import yaml

from penstock.api import jobs
from penstock.daemon.mount_registry import MountNote, write_note
from penstock.member.note import MemberNote
from penstock.member.note import note_path as member_path
from penstock.member.note import write_note as write_member
from penstock.member.options import MemberOptions
from penstock.reconcile.state import State
from penstock.release import __version__
from tests.support.mounts import penstock, succeed
from tests.support.refusals import one_refusal

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "guides" / "command-line.md"
BINARIES = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def config(state: Path) -> Path:
    path = state / ".config" / "penstock" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def words(state: Path, line: str, shell: str = "bash") -> list[str]:
    """What `penstock` answers when a shell asks how the last word may go on."""
    typed = line.split(" ")
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": typed[-1] if shell == "fish" else str(len(typed) - 1),
    }
    result = subprocess.run(
        [sys.executable, "-m", "penstock"],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert result.stderr == ""
    found = result.stdout.split()
    if shell == "zsh":  # a type, a word and its help, a line each
        return found[1::3]
    return [one.partition(",")[2].split("\t")[0] for one in found]


@pytest.fixture
def names(declared: State, monkeypatch: pytest.MonkeyPatch) -> State:
    """Two jobs, one of them of a namespace of its own; nothing runs."""
    monkeypatch.setattr(jobs, "wake_loop", lambda _: None)
    for name, namespace in (("resnet", "default"), ("bert", "team")):
        succeed("submit", "tf", "--name", name, "-n", namespace, "true")
    return declared


def test_kinds_and_names_are_completed_for_each_shell(names: State, tmp_path: Path) -> None:
    folder = names.folder
    mount = MountNote(str(tmp_path / "mnt"), "s3://b", os.getpid(), 0.0, None)
    write_note(mount)
    assert words(folder, "penstock log") == ["logs"]
    assert words(folder, "penstock get trainingj") == ["trainingjobs"]
    assert words(folder, "penstock logs ") == [mount.mountpoint, "resnet"]
    assert words(folder, "penstock logs --namespace team ") == ["bert"]
    assert words(folder, "penstock delete job res") == ["resnet"]
    assert words(folder, "penstock get job -n ") == ["default", "team"]
    assert words(folder, "penstock umount ") == [mount.mountpoint]
    assert words(folder, "penstock submit py") == ["pytorch"]
    assert words(folder, "penstock get nonsense ") == []
    assert words(folder, "penstock attach re", "zsh") == ["resnet"]
    assert words(folder, "penstock top job re", "fish") == ["resnet"]


def test_ports_of_members_are_completed(state: Path) -> None:
    write_member(member_path(21211), MemberNote(MemberOptions(1 << 30, port=21211)))
    assert words(state, "penstock shared st") == ["start", "status", "stop"]
    assert words(state, "penstock shared stop --port ") == ["21211"]


def test_the_script_of_each_shell_is_printed_with_where_it_belongs() -> None:
    for shell in ("bash", "zsh", "fish"):
        script = succeed("completion", shell)
        assert f"{shell}_complete" in script
        (line,) = re.findall(
            rf"^    (.*penstock completion {shell}\S*.*?) +#", GUIDE.read_text(), re.M
        )
        assert line in script
    assert "tcsh" in penstock("completion", "tcsh").stderr


def shell_says(*command: str) -> str:
    program = which(command[0])
    assert program, f"{command[0]} is missing; `make test-slow` installs it"
    path = f"{BINARIES}:{os.environ['PATH']}"
    result = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        check=True, timeout=100,
    )  # fmt: skip
    return result.stdout


BASH = """source <(penstock completion bash)
COMP_WORDS=(penstock logs re) COMP_CWORD=2
_penstock_completion penstock re logs
echo "${COMPREPLY[@]}"
"""


@pytest.mark.usefixtures("names")
def test_a_real_bash_completes_the_name_of_a_job() -> None:
    assert shell_says("bash", "-c", BASH) == "resnet\n"


@pytest.mark.slow
@pytest.mark.usefixtures("names")
def test_a_real_fish_and_zsh_complete_the_name_of_a_job() -> None:
    fish = "penstock completion fish | source; complete -C 'penstock logs re'"
    assert shell_says("fish", "--private", "-c", fish) == "resnet\n"
    zsh = """autoload -U compinit; compinit -u -D; source <(penstock completion zsh)
    compadd() { print -r -- "${(P)@[-1]}" }; _describe() { print -r -- "${(P)3}" }
    words=(penstock logs re) CURRENT=3; _penstock_completion"""
    assert "resnet" in shell_says("zsh", "-fc", zsh)


# -- defaults -------------------------------------------------------------------------------------


def spec(*options: str) -> dict[str, object]:
    lines = succeed("submit", "pytorch", "--name", "n", "--dry-run", "-o", "yaml", *options, "true")
    return yaml.safe_load(lines)["spec"]


def test_flags_come_before_the_environment_and_that_before_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "gpus" not in spec()
    config.write_text('[submit.pytorch]\ngpus = 1\nwarm = true\nenv = ["A=1", "B=2"]\n')
    found = spec()
    assert (found["gpus"], found["warm"]) == (1, True)
    assert {"name": "B", "value": "2"} in found["env"]  # type: ignore[operator]
    monkeypatch.setenv("PENSTOCK_SUBMIT_PYTORCH_GPUS", "2")
    assert spec()["gpus"] == 2
    assert spec("--gpus", "3")["gpus"] == 3


def test_the_namespace_of_all_commands_may_be_set_once(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('namespace = "vision"\n[list]\nnamespace = "speech"\n')
    for command, namespace in (("list", "speech"), ("data list", "vision")):
        assert namespace in penstock(*command.split()).stderr
    monkeypatch.setenv("PENSTOCK_NAMESPACE", "text")
    for command in ("list", "data list"):
        assert "in the namespace text" in penstock(*command.split()).stderr
    assert "in the namespace mine" in penstock("list", "-n", "mine").stderr


def test_options_of_a_mount_may_come_from_the_file(config: Path, tmp_path: Path) -> None:
    config.write_text('[mount]\ncache-size = "1 fortnight"\n')
    (tmp_path / "mnt").mkdir()
    command = ["mount", f"file://{tmp_path}", str(tmp_path / "mnt"), "-b"]
    one_refusal(command, says="1 fortnight", hint=None)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ('namespac = "a"', "`penstock` has no namespac", "did you mean namespace?"),
        ("[lst]\nx = 1", "`penstock` has no lst", "did you mean list?"),
        ('[list]\nnamespce = "a"', "has no namespce, as in list.namespce", "namespace?"),
        ("[list]\nall-namespaces = 1", "takes true or false", "all-namespaces = true"),
        ("[list]\nnamespace = true", "takes a value", "write it like"),
        ('[list]\nnamespace = ["a"]', "takes one value", "write it like"),
        ("namespace = 1\n[namespace]", "Cannot", "TOML"),
        ("[[", "TOML|Expected|Invalid", "TOML"),
        ("list = 1", "list is not a table", "[list]"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(
    config: Path, text: str, says: str, hint: str
) -> None:
    config.write_text(text)
    error = one_refusal(["list"], says=says)
    assert str(config) in error
    assert hint in error.splitlines()[1]


def test_the_file_of_the_guide_works_and_another_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GUIDE.read_text().split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(text)["priority-classes"] == {"critical": 1000}
    (tmp_path / "other.toml").write_text(text)
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "other.toml"))
    found = spec("--priority", "critical")
    assert (found["gpus"], found["priority"]) == (1, 1000)
    (tmp_path / "mnt").mkdir()
    source = f"file://{tmp_path}/missing"
    assert "missing" in one_refusal(["mount", source, str(tmp_path / "mnt"), "-b"], says="")
    hint = "write a number, or give slow one in [priority-classes] of "
    error = one_refusal(["submit", "mpi", "--name", "n", "--priority", "slow", "x"], says="slow")
    assert error.splitlines()[1] == f"hint: {hint}{tmp_path}/other.toml"


# -- help and version -----------------------------------------------------------------------------


def test_help_is_a_command_too() -> None:
    assert succeed("help") == succeed("--help")
    for line in ("mount", "submit pytorch", "top job"):
        assert succeed("help", *line.split()) == succeed(*line.split(), "--help")
    error = one_refusal(["help", "submit", "nonsense"], says="penstock submit has no command")
    assert "`penstock help submit` lists what there is" in error


def test_the_version_is_said_in_each_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VERSION", "1")
    for words in (["-V"], ["--version"], ["version"]):
        assert succeed(*words) == f"penstock {__version__}\n"
    assert succeed("version", "--short") == f"{__version__}\n"
    assert "no jobs" in penstock("list").stderr


def test_an_unknown_command_is_refused_with_the_nearest_one() -> None:
    assert "did you mean mount?" in one_refusal(["mont"], says="there is no command 'mont'")


def test_the_man_page_has_each_command_and_no_line_that_roff_would_take_for_its_own() -> None:
    page = (ROOT / "docs/reference/penstock.1").read_text()
    for command in ("mount", "submit pytorch", "top node", "completion"):
        assert f'.SS "penstock {command}"\n.nf\n' in page
    own = {".TH", ".SH", ".SS", ".nf", ".fi"}
    assert {line.split()[0] for line in page.splitlines() if line[:1] in (".", "'")} == own
