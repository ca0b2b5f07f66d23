"""Jobs in an image, with a real podman and an image of a few kilobytes."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.api import resources as api
from penstock.jobs.attach import attach_argv
from penstock.jobs.containers import container_name
from penstock.store.redaction import HIDDEN
from tests.support.jobs import Jobs, kill
from tests.support.podman import podman, private_podman
from tests.support.waiting import wait_until_gone

pytestmark = pytest.mark.slow  # 20 s: each container takes about a second to start

IMAGE = "localhost/busy:1"
DATA = [{"dataset": "imagenet", "mountPath": "/data"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An engine with the image in it."""
    if not shutil.which("busybox"):
        pytest.skip("the package busybox-static is needed")
    root = tmp_path_factory.mktemp("root")
    (root / "bin").mkdir()
    shutil.copy("/bin/busybox", root / "bin")
    for name in ("sh", "cat", "touch", "sleep", "echo", "head", "tail", "env", "pwd"):
        (root / "bin" / name).symlink_to("busybox")
    packed = subprocess.run(["tar", "-C", root, "-c", "."], check=True, capture_output=True).stdout
    with private_podman(driver="vfs"):
        podman("import", "-", IMAGE, data=packed)
        yield


def test_a_container_sees_what_a_job_sees(
    engine: None, imagenet: None, jobs: Jobs, tmp_path: Path
) -> None:
    script = (
        "cat /data/train/a; echo; touch /data/new || echo read-only; pwd; echo $PATH $TOKEN $N; "
        "touch made; echo name $PENSTOCK_JOB_NAME"
    )
    found = jobs.run(
        "net",
        ["sh", "-c", script],
        image=IMAGE,
        data=DATA,
        workingDir=str(tmp_path),
        warm=True,
        cpu="500m",
        memory="64Mi",
        env=[
            {"name": "PATH", "value": "/bin:/opt/mine"},
            {"name": "TOKEN", "value": "s3same"},
            {"name": "N", "value": "two\nlines"},
        ],
    )
    lines = jobs.log("net").splitlines()
    assert found.status["phase"] == "SUCCEEDED", (found.status, lines)
    assert lines[0] == "alpha"
    expected = {"read-only", str(tmp_path), f"/bin:/opt/mine {HIDDEN} two lines", "name net"}
    assert expected <= set(lines)
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("end", ["delete", "kill"])
def test_a_container_can_be_attached_to_and_ends_with_its_job_or_keeper(
    engine: None, jobs: Jobs, end: str
) -> None:
    jobs.submit("net", ["sh", "-c", "echo begun; sleep 1000"], image=IMAGE)
    found = jobs.running("net")
    jobs.wait("net", lambda _: "begun" in jobs.log("net"))
    name = container_name(found.uid, "net-worker-0")
    inside = int(podman("inspect", "--format", "{{.State.Pid}}", name))
    argv = attach_argv(jobs.state, found, "worker-0", ["sh", "-c", "echo $PENSTOCK_JOB_NAME"])
    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"net\n"
    if end == "delete":
        api.delete("job", "net")
    else:
        kill(jobs.record("net")["keeper"])
        jobs.end("net")
    wait_until_gone(inside)
    assert podman("ps", "-aq") == ""
