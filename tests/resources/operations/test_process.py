"""DataProcess, over a real mount."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, UsageError
from penstock.resources.operations import process as module
from penstock.resources.operations.output import Output
from tests.conftest import Mount, Mounter, write_tree
from tests.resources.operations.working import Bench, kill_when, run, start

PLACE = f"/penstock-process-{os.getpid()}"


@pytest.fixture
def mount(mounter: Mounter, tmp_path: Path) -> Mount:
    write_tree(tmp_path / "data", {"a": b"alpha", "deep/b": b"beta"})
    return mounter(f"file://{tmp_path}/data")


def process(mount: Mount, folder: Path, processor: dict[str, Any], **dataset: str) -> Bench:
    return Bench(
        {"apiVersion": "data.fluid.io/v1alpha1", "kind": "DataProcess",
         "metadata": {"name": "process"},
         "spec": {"dataset": {"name": "set", "mountPath": PLACE, **dataset},
                  "processor": processor}},
        str(folder / "work"), {"default/set": (str(mount.path), [])},
    )  # fmt: skip


def script(source: str, **more: Any) -> dict[str, Any]:
    return {"script": {"source": source, "image": "busybox", "imageTag": "1", **more}}


def output_of(bench: Bench) -> str:
    return Path(bench.folder, "output").read_text()


def test_a_script_sees_the_data_set_at_its_path(mount: Mount, tmp_path: Path) -> None:
    out = tmp_path / "result"
    bench = process(mount, tmp_path, script(f"cat {PLACE}/a {PLACE}/deep/b > {out}; echo done"))
    infos, _ = run(bench)
    assert out.read_text() == "alphabeta"
    assert output_of(bench) == "done\n"
    assert infos == {"ExitCode": "0", "Attempts": "1", "Output": f"{bench.folder}/output"}
    assert not Path(PLACE).exists()


def test_a_folder_of_it_can_be_meant(mount: Mount, tmp_path: Path) -> None:
    bench = process(mount, tmp_path, script(f"cat {PLACE}/b"), subPath="/deep/")
    run(bench)
    assert output_of(bench) == "beta"


@pytest.mark.parametrize(
    ("source", "command"),
    [("print('python')", ["python3"]), ("#!/usr/bin/env python3\nprint('python')", []),
     ("echo $0 | grep -q script && echo python", ["bash", "-e"])],
)  # fmt: skip
def test_what_runs_a_script(mount: Mount, tmp_path: Path, source: str, command: list[str]) -> None:
    bench = process(mount, tmp_path, script(source, command=command))
    run(bench)
    assert output_of(bench) == "python\n"


def test_a_pod_is_run_as_the_command_of_its_first_container(mount: Mount, tmp_path: Path) -> None:
    pod = {
        "restartPolicy": "Never",
        "containers": [
            {"name": "one", "image": "python:3", "command": ["sh", "-c"],
             "args": ["echo $(WORD) '$$(WORD)' $WORD; pwd"], "workingDir": "/usr",
             "env": [{"name": "WORD", "value": "hello"}]},
            {"name": "two", "image": "busybox", "command": ["false"]},
        ],
    }  # fmt: skip
    bench = process(mount, tmp_path, {"job": {"podSpec": pod}})
    _, work = run(bench)
    assert output_of(bench) == "hello $(WORD) hello\n/usr\n"
    assert any("first container" in message for _, message in work.told)


def test_a_script_that_fails_is_told_with_its_status_and_its_last_words(
    mount: Mount, tmp_path: Path
) -> None:
    bench = process(mount, tmp_path, script("echo no such column >&2; exit 3"))
    with pytest.raises(PenstockError, match="ended with status 3; it said last: no such column"):
        run(bench)
    with pytest.raises(PenstockError, match="was ended by SIGTERM"):
        run(process(mount, tmp_path, script("kill -TERM $$")))


def test_one_that_may_restart_is_run_again(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_PAUSES_S", (0.0, 0.0, 0.0))
    tries = "echo x >> tries; test $(wc -l < tries) = 3"
    infos, _ = run(process(mount, tmp_path, script(tries, restartPolicy="OnFailure")))
    assert infos["Attempts"] == "3"
    bench = process(mount, tmp_path / "2", script("exit 1", restartPolicy="OnFailure"))
    (tmp_path / "2").mkdir()
    with pytest.raises(PenstockError):
        run(bench)


def test_secrets_reach_the_script_and_nothing_else(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-one-who-applied")
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        {"name": "API_TOKEN", "value": "written-plainly"},
    ]
    bench = process(
        mount, tmp_path, script('test "$PASSWORD" = "open-"sesame-1 && env', env=env)
    )  # fmt: skip
    bench.secrets = {"default/db/password": "open-sesame-1"}
    run(bench)
    kept = b"".join(path.read_bytes() for path in Path(bench.folder).rglob("*") if path.is_file())
    for secret in (b"open-sesame-1", b"written-plainly", b"of-the-one-who-applied"):
        assert secret not in kept
    assert b"PASSWORD=" in kept


def test_killed_in_the_middle_it_leaves_nothing_running_and_is_run_again(
    mount: Mount, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    source = f"echo $$ >> {pids}; sleep 100 & echo $! >> {pids}; echo begun; sleep 100"
    bench = process(mount, tmp_path, script(source))
    kill_when(start(bench), lambda told: told["outputBytes"] >= 6)
    bench.manifest["spec"]["processor"]["script"]["source"] = "echo again"
    infos, _ = run(bench)
    assert infos["ExitCode"] == "0"
    for pid in pids.read_text().split():
        _wait_for_end(int(pid))


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_it_left_in_the_background_ends_with_it(mount: Mount, tmp_path: Path) -> None:
    run(process(mount, tmp_path, script(f"sleep 100 & echo $! > {tmp_path}/pid")))
    _wait_for_end(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("processor", "what"),
    [({}, "nothing to run"), ({"job": {"podSpec": {"containers": []}}}, "is empty"),
     ({"job": {"podSpec": {"containers": [{"name": "a", "image": "b"}]}}}, "has no command"),
     (script("", command=["no-such-program"]), "no such command")],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(
    mount: Mount, tmp_path: Path, processor: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        run(process(mount, tmp_path, processor))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def test_output_without_an_end_does_not_fill_the_disk(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    output = Output(tmp_path / "output", most_bytes=100_000)
    taker = threading.Thread(target=output.take_all, args=(pipe[0],))
    taker.start()
    with os.fdopen(pipe[1], "wb") as writer:
        for number in range(100_000):
            writer.write(b"line %d\n" % number)
    taker.join()
    output.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200_000 + 65_536
    assert output.last_line() == "line 99999"
