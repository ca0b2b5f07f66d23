"""DataProcess, over a real mount."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, UsageError
from penstock.operations import process as module
from penstock.operations.process import Output
from tests.support.operation_work import Bench, kill_when, operation, run
from tests.support.shared_mounts import Shared, sharing
from tests.support.trees import write_tree
from tests.support.waiting import wait_until_gone

PLACE = f"/penstock-process-{os.getpid()}"
Process = Callable[..., Bench]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("process")
    write_tree(folder / "data", {"a": b"alpha", "deep/b": b"beta"})
    with sharing(folder) as mounter:
        yield Shared(mounter(f"file://{folder}/data"), folder / "state")


@pytest.fixture
def process(shared: Shared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Process:
    mount = shared.enter(monkeypatch)

    def bench(processor: dict[str, Any], **dataset: str) -> Bench:
        spec = {"dataset": {"name": "set", "mountPath": PLACE, **dataset}, "processor": processor}
        datasets = {"default/set": (str(mount.path), [])}
        return Bench(operation("DataProcess", spec), str(tmp_path / "work"), datasets)

    return bench


def script(source: str, **more: Any) -> dict[str, Any]:
    return {"script": {"source": source, "image": "busybox", "imageTag": "1", **more}}


def output_of(bench: Bench) -> str:
    return Path(bench.folder, "output").read_text()


def test_a_script_sees_the_data_set_or_a_folder_of_it(process: Process, tmp_path: Path) -> None:
    out = tmp_path / "result"
    bench = process(script(f"cat {PLACE}/a {PLACE}/deep/b > {out}; echo done"))
    infos, _ = run(bench)
    assert out.read_text() == "alphabeta"
    assert output_of(bench) == "done\n"
    assert infos == {"ExitCode": "0", "Attempts": "1", "Output": f"{bench.folder}/output"}
    assert not Path(PLACE).exists()
    for first_line, command in (("", ["python3"]), ("#!/usr/bin/env python3\n", [])):
        source = f"{first_line}print(open('{PLACE}/b').read())"
        bench = process(script(source, command=command), subPath="/deep/")
        run(bench)
    assert output_of(bench) == "done\nbeta\nbeta\n"


def test_the_command_of_the_first_container_of_a_pod_is_run(process: Process) -> None:
    first = {
        "name": "one",
        "image": "python:3",
        "command": ["sh", "-c"],
        "workingDir": "/usr",
        "args": ["echo $(WORD) '$$(WORD)' $WORD; pwd"],
        "env": [{"name": "WORD", "value": "hello"}],
    }
    second = {"name": "two", "image": "busybox", "command": ["false"]}
    bench = process({"job": {"podSpec": {"containers": [first, second]}}})
    _, work = run(bench)
    assert output_of(bench) == "hello $(WORD) hello\n/usr\n"
    assert any("first container" in message for _, message in work.events)


def test_a_script_may_be_retried(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_PAUSES_S", (0.0, 0.0))
    source = "echo x >> tries; echo no such column >&2; test $(wc -l < tries) = 6"
    bench = process(script(source, restartPolicy="OnFailure"))
    with pytest.raises(PenstockError, match="ended with status 1; its last line: no such column"):
        run(bench)  # three times
    assert run(bench)[0]["Attempts"] == "3"
    with pytest.raises(PenstockError, match="was killed by SIGTERM"):
        run(process(script("kill -TERM $$")))
    with pytest.raises(UsageError, match="no such command"):
        run(process(script("", command=["no-such-program"])))
    with pytest.raises(UsageError, match="has no command"):
        run(process({"job": {"podSpec": {"containers": [{"name": "a", "image": "b"}]}}}))


def test_secrets_reach_only_the_script(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-one-who-applied")
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        {"name": "API_TOKEN", "value": "written-plainly"},
    ]
    bench = process(script('test "$PASSWORD" = "open-"sesame-1 && env', env=env))
    bench.secrets = {"default/db/password": "open-sesame-1"}
    run(bench)
    kept = b"".join(path.read_bytes() for path in Path(bench.folder).rglob("*") if path.is_file())
    for secret in (b"open-sesame-1", b"written-plainly", b"of-the-one-who-applied"):
        assert secret not in kept
    assert b"PASSWORD=" in kept


def test_a_killed_process_operation_leaves_nothing_running_and_is_run_again(
    process: Process, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    leave_one = f"sleep 100 & echo $! >> {pids}"
    kill_when(
        process(script(f"echo $$ >> {pids}; {leave_one}; echo begun; sleep 100")),
        lambda progress: progress["outputBytes"] >= 6,
    )
    infos, _ = run(process(script(leave_one)))
    assert infos["ExitCode"] == "0"
    left = pids.read_text().split()
    assert len(left) == 3
    for pid in left:
        wait_until_gone(int(pid))


def test_endless_output_does_not_fill_the_disk(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    output = Output(tmp_path / "output", most_bytes=100_000)
    taker = threading.Thread(target=output.take_all, args=(reader,))
    taker.start()
    with os.fdopen(writer, "wb") as file:
        file.writelines(b"line %d\n" % number for number in range(100_000))
    taker.join()
    output.close()
    os.close(reader)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200_000 + 65_536
    assert output.last_line() == "line 99999"
