"""A process that sees a folder at a place of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.reconcile.mount_namespace import run_with_data
from tests.support.mounts import Mounter
from tests.support.trees import write_tree
from tests.support.waiting import wait_until_gone

NOWHERE = Path(f"/penstock-test-{os.getpid()}")


def run(script: str, *binds: tuple[Path, Path], cwd: Path | None = None) -> tuple[int, str]:
    reader, writer = os.pipe()
    try:
        process = run_with_data(
            ["sh", "-c", script], binds, env={"PATH": os.environ["PATH"]}, cwd=cwd, stdout=writer
        )
    finally:
        os.close(writer)
    with os.fdopen(reader) as output:
        printed = output.read()
    return process.wait(30), printed


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_tree(tmp_path / "data", {"a": b"alpha", "deep/b": b"beta"})
    return tmp_path / "data"


@pytest.fixture(params=["there", "missing", "missing from the root"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "there":
        (tmp_path / "place").mkdir()
    return NOWHERE / "in/side" if "root" in request.param else tmp_path / "place"


def test_a_folder_is_visible_at_its_path_read_only_and_in_one_namespace_only(
    data: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for everyone")
    was_there = target.exists()
    script = f"cat {target}/a {target}/deep/b; touch {target}/c || echo refused; env"
    status, output = run(script, (data, target))
    assert status == 0
    assert output.startswith("alphabeta")
    assert "refused\n" in output
    assert "PATH=" in output
    assert "not for everyone" not in output
    assert target.exists() == was_there
    assert not was_there or not list(target.iterdir())
    assert not NOWHERE.exists()
    # The rest of the machine is as it is.
    (tmp_path / "link").symlink_to("data/a")
    out = tmp_path / "out"
    out.mkdir()
    script = f"echo kept > {out}/file; cat {tmp_path}/link; echo; ls -A /; pwd"
    status, output = run(script, (data, target), cwd=out)
    assert status == 0, output
    assert (out / "file").read_text() == "kept\n"
    assert output.startswith("alpha")
    assert set(os.listdir("/")) <= set(output.split("\n"))
    assert str(out) in output


def test_several_folders_can_be_nested(data: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "other", {"c": b"gamma"})
    script = f"cat {NOWHERE}/a {NOWHERE}/deep/c; ls {NOWHERE}/deep"
    status, output = run(script, (data, NOWHERE), (tmp_path / "other", NOWHERE / "deep"))
    assert (status, output) == (0, "alphagammac\n")
    # A missing place takes no new names.
    script = f"touch {tmp_path}/new 2>/dev/null || echo refused"
    assert run(script, (data, tmp_path / "place")) == (0, "refused\n")
    assert sorted(os.listdir(tmp_path)) == ["data", "other"]


@pytest.mark.parametrize(
    ("source", "place", "what"),
    [
        ("nowhere", "place", "not a folder"),
        ("data", "data/a", "a file"),
        ("data", "data/a/b", "a file"),
    ],
)
def test_mistakes_in_a_namespace_are_reported(
    data: Path, tmp_path: Path, source: str, place: str, what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        run(f"touch {tmp_path}/ran", (tmp_path / source, tmp_path / place))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UsageError, match="no-such-command: no such command"):
        run_with_data(["no-such-command"], [], env={"PATH": "/usr/bin"})


def test_a_process_in_a_namespace_dies_with_its_parent(data: Path) -> None:
    code = (
        "from pathlib import Path; from penstock.reconcile.mount_namespace import run_with_data; "
        f"child = run_with_data(['sleep', '100'], [(Path({str(data)!r}), Path('{NOWHERE}'))], "
        "env={'PATH': '/usr/bin:/bin'}); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        starter.kill()
    wait_until_gone(child)


def test_a_process_keeps_no_other_data_set_busy_and_sees_mounts_made_by_hand(
    mounter: Mounter, data: Path
) -> None:
    mount = mounter(f"file://{data}")
    other = mounter(f"file://{data}", "-o", "fsname=dataset/default/other")
    status, output = run(
        f"cat {NOWHERE}/a {mount.path}/a; grep -c dataset/default/other /proc/self/mountinfo; "
        f"cat {other.path}/a",
        (mount.path, NOWHERE),
    )
    assert output.startswith("alphaalpha0\n")
    assert "No such file" in output
    assert status == 1
