"""docs/guides/containers.md is true: each command on it, and each sentence on what it does."""

import itertools
import os
import re
import shlex
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.containers.ground import FILES, GUIDE, SHARED, SUMS, Ground, sums_in
from tests.support.podman import logs, podman
from tests.support.waiting import wait_until, wait_until_gone

pytestmark = pytest.mark.slow  # a minute, and another two if the image has to be built
IMAGE = "localhost/penstock:0.1.0"
READER = """
until ls /data/images/1.jpg; do sleep 0.1; done
exec 3</data/images/2.jpg
echo opened
while ! ls /data/close; do sleep 0.1; done
cat <&3 | sha256sum
"""


def mount_command(title: str = "A sidecar") -> str:
    return GUIDE.command(title, "mount s3://bucket/images")


def start_sidecar(ground: Ground, *more: str) -> None:
    """As the guide does; `more` options of `penstock mount`."""
    ground.run(GUIDE.command("A sidecar", "mkdir"))
    ground.run(shlex.join([*shlex.split(mount_command()), *more]))
    ground.wait_until_mounted("penstock", "/mnt/images")


def start_reader(script: str) -> None:
    """A container without any right, key or network that goes on."""
    words = shlex.split(GUIDE.command("A sidecar", "--name trainer"))
    podman(*words[1:2], "--detach", *words[2:-1], script)


def processes_in(container: str) -> dict[int, str]:
    """Return the state of each process of a container, by its number on the machine."""
    rows = podman("top", container, "hpid,state").splitlines()[1:]
    return {int(row.split()[0]): row.split()[1] for row in rows}


def test_one_container_mounts_and_its_end_leaves_nothing(ground: Ground) -> None:
    printed = ""
    for command in GUIDE.commands("One container"):
        printed += ground.run(command)
        if command.startswith("until"):
            processes = processes_in("penstock")
        if command == "podman stop penstock":
            assert ground.exit_code("penstock") == 0
    assert set(FILES) <= set(printed.split())
    assert "12 files" in printed
    for pid in processes:
        wait_until_gone(pid)
    assert podman("ps", "-aq") == ""


def test_the_next_container_starts_with_what_the_last_one_fetched(ground: Ground) -> None:
    for _ in range(2):
        ground.run(mount_command("One container"))
        ground.wait_until_mounted("penstock", "/mnt")
        printed = ground.run("podman exec penstock sh -c 'sha256sum /mnt/*'")
        assert sums_in(printed) == SUMS
        stats = ground.wait_until_mounted("penstock", "/mnt")
        ground.run("podman stop penstock")
        ground.run("podman rm penstock")
    assert stats["store_bytes"] == 0


def test_a_reader_without_any_right_sees_the_mount_of_a_sidecar(ground: Ground) -> None:
    for command in GUIDE.commands("A sidecar"):
        if command.startswith("mount --"):
            break  # /srv/penstock lies on a shared mount
        printed = ground.run(command)
        if "--name trainer" in command:
            assert sums_in(printed) == SUMS
            assert ground.exit_code("trainer") == 0
            inside = list(processes_in("penstock"))
    assert ground.mounted() == [f"{SHARED}/images"]
    ground.run(GUIDE.command("How it ends", "podman stop"))
    assert ground.exit_code("penstock") == 0
    assert ground.mounted() == []
    assert list((SHARED / "images").iterdir()) == []
    for pid in inside:
        wait_until_gone(pid)


def test_a_folder_on_a_private_mount_shows_nothing_until_it_is_shared(ground: Ground) -> None:
    subprocess.run(["mount", "--make-private", SHARED.parent], check=True)
    start_sidecar(ground)
    assert ground.mounted() == []
    podman("rm", "--all", "--force", "--time=40")
    for command in GUIDE.commands("A sidecar"):
        if command.startswith("mount --"):
            ground.run(command)
    start_sidecar(ground)
    assert ground.mounted() == [f"{SHARED}/images"]


def test_a_file_that_is_open_stays_readable_after_the_unmount(ground: Ground) -> None:
    start_sidecar(ground)
    start_reader(READER)
    wait_until(lambda: "opened" in logs("trainer"))
    with subprocess.Popen(
        ["podman", "stop", "penstock"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as stop:
        wait_until(lambda: not ground.mounted())
        assert not (SHARED / "images" / "1.jpg").exists()
        (SHARED / "close").touch()
        podman("wait", "trainer")
        assert SUMS["2.jpg"] in logs("trainer")
        assert stop.stderr is not None
        assert stop.stderr.read() == b""  # it was not killed
    assert ground.exit_code("penstock") == 0


def test_readers_see_the_new_mount_after_a_kill_and_a_start(ground: Ground) -> None:
    start_sidecar(ground)
    start_reader("while true; do sha256sum /data/images/3.jpg && echo read; sleep 0.1; done")
    wait_until(lambda: "read" in logs("trainer"))
    podman("kill", "penstock")
    podman("wait", "penstock")
    assert ground.mounted() == [f"{SHARED}/images"]  # dead
    ground.run(GUIDE.command("How it ends", "podman start"))
    ground.wait_until_mounted("penstock", "/mnt/images")
    assert ground.mounted() == [f"{SHARED}/images"]
    assert (SHARED / "images" / "4.jpg").read_bytes() == FILES["4.jpg"]
    before = logs("trainer").count("read\n")
    wait_until(lambda: logs("trainer").count("read\n") > before + 1)
    podman("rm", "--force", "--time=0", "penstock")
    assert ground.mounted() == [f"{SHARED}/images"]
    (clear,) = re.findall(r"`(umount -l .*)`", GUIDE.section("How it ends"))
    ground.run(clear)
    assert ground.mounted() == []


def test_ctrl_c_in_the_foreground_unmounts(ground: Ground) -> None:
    ground.run(GUIDE.command("A sidecar", "mkdir"))
    words = [word for word in shlex.split(mount_command()) if word != "-d"]
    with subprocess.Popen(words, cwd=ground.folder, stderr=subprocess.PIPE, text=True) as attached:
        ground.wait_until_mounted("penstock", "/mnt/images")
        attached.send_signal(signal.SIGINT)
        assert attached.wait() == 0
        assert attached.stderr is not None
        assert "Traceback" not in attached.stderr.read()
    assert ground.mounted() == []


def test_killed_servers_are_replaced_and_leave_no_zombie(ground: Ground) -> None:
    start_sidecar(ground, "--workers=2")
    first = int(podman("inspect", "--format={{.State.Pid}}", "penstock"))
    for round_number in range(2):
        (server,) = [pid for pid in processes_in("penstock") if is_server(pid, first)]
        os.kill(server, signal.SIGKILL)
        wait_until_gone(server)
        name = f"{round_number}.jpg"
        assert (SHARED / "images" / name).read_bytes() == FILES[name]
    wait_until(lambda: "Z" not in processes_in("penstock").values(), "zombies stay")


def is_server(pid: int, first: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return f"PPid:\t{first}\n" in status and "State:\tZ" not in status


@pytest.mark.parametrize(
    "row", GUIDE.table("What needs which right"), ids=lambda row: row[0].strip("`")
)
def test_each_right_that_is_missing_shows_as_the_guide_says(ground: Ground, row: list[str]) -> None:
    what, outcome = row
    words = shlex.split(mount_command("One container" if "volumes" in what else "A sidecar"))
    words = [word for word in words if word != "-d"]
    missing = what.split("`")[1]
    if missing == "--read-only":  # and without the volumes
        while "-v" in words:
            at = words.index("-v")
            del words[at : at + 2]
    elif missing == "--allow-other":
        words.remove(missing)
    else:
        option, start = missing.rstrip("…").split(" ")
        pairs = itertools.pairwise(words)
        at = next(n for n, (a, b) in enumerate(pairs) if a == option and b.startswith(start))
        del words[at : at + 2]
    ground.run(GUIDE.command("A sidecar", "mkdir"))
    if "status 2" in outcome:
        ended = ground.attempt(shlex.join(words))
        assert ended.returncode == 2
        assert outcome.split("`")[1].replace("/mnt:", "/mnt/images:") in ended.stderr
        return
    ground.run(shlex.join([*words[:2], "-d", *words[2:]]))
    ground.wait_until_mounted("penstock", "/mnt/images")
    if "readahead" in outcome:
        assert "note: readahead stays at 128 KiB" in logs("penstock")
    else:
        start_reader("ls /data/images")
        podman("wait", "trainer")
        assert "Permission denied" in logs("trainer")
        assert (SHARED / "images" / "1.jpg").read_bytes() == FILES["1.jpg"]


def test_passthrough_and_readahead_need_no_more_than_the_guide_gives(ground: Ground) -> None:
    start_sidecar(ground, "--mode=passthrough")
    assert "readahead" not in logs("penstock")
    for _ in range(2):
        assert (SHARED / "images" / "1.jpg").read_bytes() == FILES["1.jpg"]
    stats = ground.wait_until_mounted("penstock", "/mnt/images")
    assert stats["mode"] == "passthrough"
    reads = stats["requests"]["READ"]
    assert (SHARED / "images" / "1.jpg").read_bytes() == FILES["1.jpg"]
    assert ground.wait_until_mounted("penstock", "/mnt/images")["requests"]["READ"] == reads


def test_keys_may_be_the_files_of_the_aws_tools(ground: Ground) -> None:
    settings = dict(line.split("=", 1) for line in (ground.folder / "keys.env").read_text().split())
    home = ground.folder / "aws"
    home.mkdir()
    credentials = home / "credentials"
    credentials.write_text(
        textwrap.dedent(f"""\
            [default]
            aws_access_key_id = {settings["AWS_ACCESS_KEY_ID"]}
            aws_secret_access_key = {settings["AWS_SECRET_ACCESS_KEY"]}
            """)
    )
    credentials.chmod(0o600)
    (option,) = re.findall(r"`(-v /root/.aws:\S+)`", GUIDE.section("One container"))
    option = option.replace("-v /root/.aws:", f"-v {home}:")
    keys = f"{option} --env AWS_ENDPOINT_URL={settings['AWS_ENDPOINT_URL']}"
    command = mount_command("One container").replace("--env-file keys.env", keys)
    ground.run(command)
    ground.wait_until_mounted("penstock", "/mnt")
    assert sums_in(ground.run("podman exec penstock sh -c 'sha256sum /mnt/*'")) == SUMS
    ground.run("podman rm --force --time=40 penstock")
    os.chown(credentials, 1000, 1000)
    refused = ground.attempt(command.replace("run -d", "run"))
    assert refused.returncode == 2
    assert "/root/.aws/credentials: Permission denied" in refused.stderr


def test_the_compose_file_does_the_same(ground: Ground) -> None:
    SHARED.mkdir()
    (SHARED / "images").mkdir()
    (ground.folder / "compose.yaml").write_text(GUIDE.file("Compose"))
    up, down = GUIDE.commands("Compose")
    ground.run(up)
    (trainer,) = podman("ps", "-aq", "--filter=name=trainer").split()
    podman("wait", trainer)
    assert sums_in(logs(trainer)) == SUMS
    (server,) = podman("ps", "-aq", "--filter=name=penstock").split()
    assert ground.mounted() == [f"{SHARED}/images"]
    assert IMAGE in podman("inspect", server)
    ground.run(down)
    assert ground.mounted() == []
    assert podman("ps", "-aq") == ""
