"""`penstock shared`: a real memcached that is started, found, restarted and stopped."""

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import procfs
from penstock.bench.workspace import free_port
from penstock.member import lifecycle
from penstock.member.note import lock_path, note_path
from tests.support.members import Client, Json, StartMember, kill, pid_of, status
from tests.support.mounts import fail, penstock, succeed
from tests.support.processes import listens
from tests.support.users import NOBODY, User
from tests.support.waiting import wait_for_input, wait_until, wait_until_gone


def stop(port: int) -> str:
    result = penstock("shared", "stop", "--port", str(port))
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_a_member_holds_values_larger_than_a_block(member: StartMember) -> None:
    with Client(member()) as client:
        value = os.urandom((512 << 10) + 100)
        assert client.set("k", value)
        assert client.get("k") == value


def test_starting_says_which_address_mounts_need(member: StartMember) -> None:
    port = member()
    result = penstock("shared", "start", "--port", str(port), "--memory", "64MiB")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == (
        f"it runs already: 127.0.0.1:{port}\n"
        f"give it to mounts: --shared memcached://127.0.0.1:{port}\n"
    )


def test_a_member_that_others_reach_comes_with_a_warning_that_names_the_key(
    member: StartMember,
) -> None:
    port = free_port()
    result = penstock(
        "shared", "start", "--port", str(port), "--memory", "64MiB", "--listen", "0.0.0.0"
    )
    assert result.returncode == 0
    assert f"--shared memcached://{socket.gethostname()}:{port}\n" in result.stderr
    assert "warning: memcached has no access control" in result.stderr
    assert "--shared-key FILE" in result.stderr


def test_a_second_start_with_other_options_is_refused(member: StartMember) -> None:
    port = member()
    said = fail("shared", "start", "--port", str(port), "--memory", "65MiB")
    assert "with other options (--memory)" in said
    assert f"hint: `penstock shared stop --port {port}` first" in said
    assert status(port)["stats"]["limit_bytes"] == 64 << 20


def test_a_port_of_another_program_is_refused(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = fail("shared", "start", "--port", str(port), "--memory", "64MiB")
    assert f"127.0.0.1 port {port} is in use by another program" in said
    assert "hint: choose another --port" in said
    assert list((state / "shared").iterdir()) == []


def test_an_address_of_another_machine_is_refused(state: Path) -> None:
    said = fail("shared", "start", "--memory", "64MiB", "--listen", "192.0.2.1")
    assert "192.0.2.1 port 11211: Cannot assign requested address" in said
    assert "hint: `ip address`" in said


def test_more_memory_than_the_machine_has_is_refused(state: Path) -> None:
    assert "--memory: the machine has" in fail("shared", "start", "--memory", "900TiB")


def test_without_memcached_a_hint_names_the_package(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    said = fail("shared", "start", "--memory", "64MiB")
    assert said == "penstock: memcached is not installed\nhint: apt-get install memcached\n"


def test_an_old_memcached_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "memcached"
    old.write_text("#!/bin/sh\necho memcached 1.5.22\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = fail("shared", "start", "--memory", "64MiB")
    assert f"{old} is memcached 1.5.22; at least 1.6 is needed" in said


def test_a_memcached_that_does_not_start_is_reported_with_its_own_words(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = on_disk / "memcached"
    broken.write_text(
        "#!/bin/sh\n[ $1 = -V ] && exec echo memcached 1.6.18\necho no >&2; exit 71\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{on_disk}:{os.environ['PATH']}")
    port = free_port()
    if os.geteuid() == 0:
        said = fail("shared", "start", "--memory", "64MiB", "--port", str(port))
        assert f"{broken} cannot be run as the user memcache: Permission denied" in said
    on_disk.chmod(0o755)
    said = fail("shared", "start", "--memory", "64MiB", "--port", str(port))
    assert "memcached did not start: no\n" in said
    assert not note_path(port).exists()
    assert not lock_path(port).exists()


def test_status_counts_what_a_member_holds(member: StartMember) -> None:
    port = member()
    with Client(port) as client:
        for number in range(10):
            assert client.set(f"k{number}", bytes(100_000))
        found = status(port)
    assert found["state"] == "running"
    assert found["stats"]["items"] == 10
    assert 1_000_000 < found["memory_bytes"] < 1_002_000
    assert found["stats"]["connections"] >= 2  # this client's, and that of the command
    text = succeed("shared", "status", "--port", str(port)).splitlines()
    assert text[0].split()[:2] == ["MEMBER", "STATE"]
    assert text[1].startswith(f"127.0.0.1:{port}   running   977.2 KiB of 64.0 MiB   –       10")


def test_stopping_ends_all_processes_and_removes_all_files_but_the_log(
    member: StartMember, state: Path
) -> None:
    port = member()
    pid, supervisor = pid_of(port), status(port)["supervisor_pid"]
    assert stop(port) == f"127.0.0.1:{port} has ended\n"
    assert procfs.is_gone(pid)
    assert procfs.is_gone(supervisor)
    assert not listens(port)
    assert list((state / "shared").iterdir()) == []
    assert stop(port) == f"no member of a shared tier runs on port {port}\n"


def test_the_only_member_is_stopped_by_no_name_and_one_of_two_is_not(member: StartMember) -> None:
    first, second = member(), member()
    said = fail("shared", "stop")
    assert f"several members run here, on ports {min(first, second)}, {max(first, second)}" in said
    assert "hint: name one by --port" in said
    stop(first)
    result = penstock("shared", "stop")
    assert (result.returncode, result.stderr) == (0, f"127.0.0.1:{second} has ended\n")
    assert penstock("shared", "stop").stderr == "no member of a shared tier runs here\n"


def test_a_process_that_got_the_supervisors_id_is_not_ended(member: StartMember) -> None:
    port = member()
    kill(status(port)["supervisor_pid"])
    with subprocess.Popen(["sleep", "60"]) as stranger:
        note = json.loads(note_path(port).read_text())
        note_path(port).write_text(json.dumps({**note, "pid": stranger.pid}))
        stop(port)
        assert stranger.poll() is None
        stranger.kill()


def restarted(port: int, times: int = 1) -> Json:
    """Its status, once memcached was started again so often."""

    def again() -> Json | None:
        found = status(port)
        return found if (found["state"], found["restarts"]) == ("running", times) else None

    return wait_until(again, lambda: status(port))


def test_a_memcached_that_dies_is_started_again(member: StartMember) -> None:
    port = member()
    pid = pid_of(port)
    kill(pid)
    found = restarted(port)
    assert found["pid"] != pid
    assert "killed by SIGKILL" in found["last_end"]
    with Client(port) as client:
        assert client.set("k", b"v")


def test_the_pauses_grow_while_it_dies_again_and_again(member: StartMember) -> None:
    port = member()
    for times in (1, 2):
        kill(pid_of(port))
        restarted(port, times)
    log = Path(status(port)["log"]).read_text()
    assert re.findall(r"starts again in (\S+) s", log) == ["0.5", "1"]
    text = penstock("shared", "status").stderr
    assert f"127.0.0.1:{port}: started again 2×; last: " in text


def test_a_member_on_ipv6_is_reached_by_its_address_in_brackets(member: StartMember) -> None:
    port = free_port()
    words = ("--port", str(port), "--memory", "64MiB", "--listen", "::1")
    said = penstock("shared", "start", *words).stderr
    assert f"give it to mounts: --shared memcached://[::1]:{port}\n" in said
    assert "warning" not in said
    assert status(port)["stats"]["limit_bytes"] == 64 << 20


def test_a_memcached_dies_with_its_supervisor_and_another_can_start(member: StartMember) -> None:
    port = member()
    pid, supervisor = pid_of(port), status(port)["supervisor_pid"]
    kill(supervisor)
    wait_until_gone(pid)
    found = status(port)
    assert (found["state"], found["pid"], found["stats"]) == ("gone", None, None)
    said = penstock("shared", "status").stderr
    assert f"penstock shared stop --port {port}" in said
    succeed("shared", "start", "--port", str(port), "--memory", "65MiB")
    assert status(port)["stats"]["limit_bytes"] == 65 << 20


def test_memcached_runs_as_another_user_than_root_and_without_environment(
    member: StartMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-key")
    pid = pid_of(member())
    assert procfs.environment(pid) == [b"PATH=" + os.defpath.encode()]
    user = int(procfs.status(pid)["Uid"].split()[0])
    if os.geteuid() == 0:
        assert pwd.getpwuid(user).pw_name in ("memcache", "memcached", "nobody")
    else:
        assert user == os.geteuid()


def test_nobody_can_list_the_keys_or_empty_a_member(member: StartMember) -> None:
    with Client(member()) as client:
        assert client.set("k", b"v")
        for line in (b"flush_all", b"lru_crawler metadump all", b"stats cachedump 1 1", b"watch"):
            assert b"ERROR" in client.command(line), line
        assert client.get("k") == b"v"


def test_ctrl_c_ends_a_member_in_the_foreground(state: Path) -> None:
    port = free_port()
    words = ["shared", "start", "--memory", "64MiB", "--port", str(port), "--foreground"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stderr=subprocess.PIPE
    ) as run:
        assert run.stderr is not None
        assert wait_for_input(run.stderr, 60)
        assert (
            run.stderr.readline()
            == f"a member of the shared tier serves 127.0.0.1:{port}\n".encode()
        )
        assert b"--shared memcached://" in run.stderr.readline()
        pid = pid_of(port)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 0
        assert b"Traceback" not in run.stderr.read()
    wait_until_gone(pid)
    assert list((state / "shared").iterdir()) == []


def test_a_start_while_another_starts_waits_for_it(
    member: StartMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_NOTED_WITHIN_S", 0.0)
    port = free_port()
    lock = lifecycle.file_locks.acquire(lock_path(port))
    assert lock is not None
    said = fail("shared", "start", "--port", str(port), "--memory", "64MiB")
    assert "is being started by another command" in said
    os.close(lock)


def test_an_ordinary_user_runs_a_member_with_flash(user: User) -> None:
    port = str(free_port())
    words = ("--port", port, "--memory", "64MiB", "--flash", f"{user.home}:1GiB")
    result = user.penstock("shared", "start", *words)
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(user.penstock("shared", "status", "-o", "json").stdout)
    assert found["stats"]["flash_limit_bytes"] == 1 << 30
    assert procfs.status(found["pid"])["Uid"].split()[0] == str(NOBODY)
    assert user.penstock("shared", "stop").stderr == f"127.0.0.1:{port} has ended\n"
    assert procfs.is_gone(found["pid"])


# -- flash -------------------------------------------------------------------------------------


def test_flash_holds_more_than_memory_and_nothing_is_left_of_it(
    member: StartMember, tmp_path: Path
) -> None:
    port = member("--flash", f"{tmp_path}:1GiB")
    rest, written = os.urandom(110 << 10), 0

    def write_more() -> Json | None:
        nonlocal written
        for _ in range(50):
            assert client.set(f"k{written}", b"%08d" % written + rest)
            written += 1
        found = status(port)
        return found if found["stats"]["flash_bytes"] > 100 << 20 else None

    with Client(port) as client:
        found = wait_until(write_more, lambda: status(port))
        held = {number: client.get(f"k{number}") for number in range(written)}
    held = {number: value for number, value in held.items() if value is not None}
    assert sum(map(len, held.values())) > 100 << 20
    assert [number for number, value in held.items() if value != b"%08d" % number + rest] == []
    assert found["stats"]["flash_limit_bytes"] == 1 << 30
    assert found["memory_bytes"] <= 64 << 20
    assert list(tmp_path.iterdir()) == []


def test_flash_survives_a_restart_of_memcached(member: StartMember, tmp_path: Path) -> None:
    port = member("--flash", f"{tmp_path}:1GiB")
    kill(pid_of(port))
    assert restarted(port)["stats"]["flash_limit_bytes"] == 1 << 30


def test_a_disk_that_is_too_small_or_missing_is_refused(tmp_path: Path) -> None:
    said = fail("shared", "start", "--memory", "64MiB", "--flash", f"{tmp_path}:900TiB")
    assert f"--flash {tmp_path}: only" in said
    said = fail("shared", "start", "--memory", "64MiB", "--flash", f"{tmp_path}/no:1GiB")
    assert f"--flash {tmp_path}/no: No such file or directory\nhint: make the folder first" in said
