"""The arm of Alluxio: what it needs, what it starts and in which order, and that nothing is left.

Its jars are no package. A stand-in for `java` takes their place, and rclone that of its mount.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.bench import measure
from penstock.bench.alluxio import HOME_VARIABLE, Alluxio
from penstock.bench.arms import Site
from penstock.bench.datasets import Dataset
from penstock.bench.peers import lacking
from penstock.bench.plans.known_arms import ARMS
from penstock.bench.s3server import S3Server
from penstock.bench.workspace import BenchError, Workspace, find_program
from tests.support.bench_ground import assert_nothing_left

PLANS = Path(__file__).parent.parent.parent / "plans"
JAVA = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
*AlluxioMaster*) echo Primary started; exec sleep 1000 ;;
*AlluxioWorker*) echo Alluxio worker started; exec sleep 1000 ;;
*AlluxioFuse*) exec {rclone} mount {data} {mountpoint} --config=/dev/null --read-only ;;
esac
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the variable names it."""
    home = tmp_path / "alluxio"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "alluxio-core-server-master-2.9.6.jar").touch()
    (home / "lib" / "asm-7.1.jar").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    return home


def put_java(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "java").write_text(text)
    (folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_what_alluxio_lacks_is_said_in_one_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    put_java(tmp_path / "bin", "#!/bin/sh\n", monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    assert lacking(["native", "alluxio"]) == {}
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", no_library)
        assert lacking(["alluxio"]) == {
            "alluxio": "libfuse.so.2: no such library; install the system's package libfuse2"
        }
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert lacking(["alluxio"])["alluxio"].startswith("java: no such program; install a Java")
    with monkeypatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(tmp_path))
        assert lacking(["alluxio"])["alluxio"].startswith(
            f"{HOME_VARIABLE}: {tmp_path} has no jars of Alluxio; "
        )
        patch.delenv(HOME_VARIABLE)
        assert lacking(["alluxio"])["alluxio"].startswith(f"{HOME_VARIABLE} is not set; ")


def test_three_processes_are_started_one_after_the_other_and_end_together(
    home: Path,
    tmp_path: Path,
    workspace: Workspace,
    server: S3Server,
    small: Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arm = Alluxio(Site(workspace, server, small.name, small), ARMS["alluxio"][0])
    log = tmp_path / "java.log"
    java = JAVA.format(
        log=log, rclone=find_program("rclone"), data=small.root, mountpoint=arm.mountpoint
    )
    put_java(tmp_path / "bin", java, monkeypatch)
    assert arm.version() == "2.9.6"
    try:
        arm.start()
        assert sorted(os.listdir(arm.root)) == sorted(os.listdir(small.root))
        assert len(workspace.processes("alluxio")) == 3
        assert arm.usage().memory_bytes > 0
        properties = arm.place / "conf" / "alluxio-site.properties"
        assert properties.stat().st_mode & 0o777 == 0o600
        settings = dict(line.split("=", 1) for line in properties.read_text().splitlines())
        assert settings["alluxio.master.mount.table.root.ufs"] == f"s3://{small.name}/"
        assert server.secret_key in settings.values()
    finally:
        arm.stop()
    started = log.read_text().splitlines()
    mains = ("cli.Format master", "AlluxioMaster", "AlluxioWorker", "AlluxioFuse -m")
    assert [main in line for main, line in zip(mains, started, strict=True)] == [True] * 4
    # Everybody on the machine can read a command line.
    assert server.secret_key not in log.read_text()
    assert f"-Djava.io.tmpdir={arm.place}/tmp" in started[0]
    assert f":{home}/lib/*" in started[0]
    assert measure.mounts_below(workspace.folder) == []
    assert workspace.processes("alluxio") == []
    assert not arm.place.exists()


def test_one_that_does_not_start_says_why_and_leaves_nothing(
    home: Path, tmp_path: Path, server: S3Server, small: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '#!/bin/sh\ncase "$*" in *Worker*) echo no room; exit 1 ;; esac\n'
    script += 'echo Primary started; case "$*" in *Master*) exec sleep 1000 ;; esac\n'
    put_java(tmp_path / "bin", script, monkeypatch)
    medium = tmp_path / "medium"
    medium.mkdir()
    with Workspace(medium) as workspace:
        arm = Alluxio(Site(workspace, server, small.name, small), ARMS["alluxio"][0])
        try:
            with pytest.raises(BenchError, match="alluxio ended with status 1: no room"):
                arm.start()
        finally:
            arm.stop()
        assert workspace.processes("alluxio") == []
    assert_nothing_left(medium)


def test_a_run_leaves_out_what_the_machine_lacks_and_says_why(medium: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != HOME_VARIABLE}
    environment |= {"PATH": str(tmp_path), "PENSTOCK_STATE_DIR": str(tmp_path / "state")}
    command = [
        *(sys.executable, "-m", "penstock", "bench", "run", PLANS / "peers.yaml", "--skip-missing"),
        *("--set", "arms=[native, alluxio, s3fs-cold]", "--set", "goals=[]"),
        *("--set", "datasets=[{name: small, form: small, files: 5}]"),
        *("--set", "workloads=[{name: read, kind: read, readers: 1}]"),
        *("--medium", medium, "--out", tmp_path / "out"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert any(f"alluxio is left out (1 experiments): {HOME_VARIABLE} is not" in n for n in notes)
    assert any("s3fs is left out (1 experiments): s3fs: no such program" in n for n in notes)
    assert "native files" in done.stdout
    results = Path(done.stdout.splitlines()[-1])
    skipped = json.loads((results / "summary.json").read_text())["skipped"]
    assert {one["id"].split("-")[0] for one in skipped} == {"alluxio", "s3fs"}
    assert_nothing_left(medium)
    # With nothing left there is nothing to compare.
    command[command.index("arms=[native, alluxio, s3fs-cold]")] = "arms=[alluxio]"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no experiment is left to run" in done.stderr
