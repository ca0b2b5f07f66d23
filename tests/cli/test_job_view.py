"""How jobs are printed, from what was observed of them; and the last lines of a log."""

import io
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.job_view import chief_of, details, duration_of
from penstock.cli.log_text import follow, start_of_last

NOW_S = datetime.fromisoformat("2026-01-01T01:00:00+00:00").timestamp()


def job(trainer: str = "mpi", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "TrainingJob",
        "metadata": {
            "name": "resnet", "namespace": "default", "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"trainer": trainer, "command": "x", **spec},
        "status": status or {},
    }  # fmt: skip


def instance(name: str, role: str, **fields: Any) -> dict[str, Any]:
    return {"name": f"resnet-{name}", "role": role, "phase": "RUNNING", **fields}


def test_a_job_is_shown_as_arena_shows_it() -> None:
    status = {
        "phase": "RUNNING", "startTime": "2026-01-01T00:04:00Z", "node": "box", "attempts": 2,
        "instances": [
            instance("ps-0", "ps", startTime="2026-01-01T00:04:00Z"),
            instance("worker-0", "worker", startTime="2026-01-01T00:59:00Z"),
            instance("worker-1", "worker", phase="PENDING"),
        ],
    }  # fmt: skip
    data = [{"dataset": "val", "namespace": "team", "mountPath": "/val"}]
    lines = details(job("tf", status, workers=2, gpus=4, data=data), NOW_S)
    assert {"Trainer:    TFJOB", "Duration:   56m", "Data:       team/val at /val"} <= {*lines}
    assert [line.split() for line in lines[-3:]] == [
        ["resnet-ps-0", "RUNNING", "56m", "false", "0", "box"],
        ["resnet-worker-0", "RUNNING", "60s", "true", "4", "box"],
        ["resnet-worker-1", "PENDING", "N/A", "false", "4", "box"],
    ]


def test_one_that_waits_says_for_what() -> None:
    status = {"phase": "QUEUING", "message": "waits for 2 GPUs; taken by job a"}
    lines = details(job(status=status, gpus=2), NOW_S)
    assert {"Message:    waits for 2 GPUs; taken by job a", "Duration:   0s"} <= {*lines}
    assert lines[-1] == "  none has been started"


def test_one_that_has_ended_gets_no_older() -> None:
    ended = {"startTime": "2026-01-01T00:00:10Z", "completionTime": "2026-01-01T00:00:15Z"}
    assert duration_of(job(status=ended), NOW_S) == "5s"


def test_a_launcher_has_the_gpus_of_all_its_ranks() -> None:
    status = {"instances": [instance("launcher", "launcher")]}
    assert details(job("mpi", status, workers=2, gpus=4))[-1].split()[-2] == "8"


def test_the_instance_that_speaks_for_a_job() -> None:
    ps, worker = instance("ps-0", "ps"), instance("worker-0", "worker")
    assert chief_of([ps, worker]) == "resnet-worker-0"
    assert chief_of([worker, instance("master-0", "master")]) == "resnet-master-0"
    assert chief_of([ps, instance("launcher", "launcher"), worker]) == "resnet-launcher"
    assert chief_of([]) is None


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\nb", b"a\n\nb\n", b"x\n" * 70_000])
@pytest.mark.parametrize("lines", [0, 1, 2, 80_000])
def test_the_last_lines_are_those_that_a_person_would_count(text: bytes, lines: int) -> None:
    start = start_of_last(io.BytesIO(text), lines)
    whole = text.splitlines(keepends=True)
    assert text[start:] == b"".join(whole[max(0, len(whole) - lines) :])


def test_the_last_lines_of_a_large_log_are_found_from_its_end() -> None:
    read: list[int] = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            read.append(size or 0)
            return super().read(size)

    text = b"line\n" * 1_000_000
    assert text[start_of_last(Watched(text), 10) :] == b"line\n" * 10
    assert sum(read) < 100_000


def test_a_log_is_followed_until_no_more_can_come_and_its_cuts_are_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n")
    texts = [b"one\ntwo\nthree\n", b"one\n", b"one\nlast\n"]

    def has_ended() -> bool:
        log.write_bytes(texts.pop(0))
        return not texts

    said = b"".join(follow(log, 4, has_ended)).decode()
    cut = "\n--- the log was full and has been cut: some may be missing here ---\n"
    assert said == f"two\nthree\n{cut}last\n"
