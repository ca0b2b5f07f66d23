"""Why an attempt ended, in words; and what its instances print, kept within bounds."""

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs.attempt_keeper import Log
from penstock.jobs.job_retry import LOST, outcome, retry_pause_s
from penstock.jobs.job_status import instance_record
from penstock.store import redaction
from penstock.units import MIB

# What mpirun and torchrun print when a process fails. mpirun may leave its second part out.
MPIRUN_IN_SHORT = f"""loss is nan
{"-" * 74}
Primary job  terminated normally, but 1 process returned a non-zero exit code.
{"-" * 74}
"""
MPIRUN = f"""{MPIRUN_IN_SHORT}{"-" * 74}
mpirun detected that one or more processes exited with non-zero status. The first was:
  Process name: [[17422,1],3]
  Exit code:    9
{"-" * 74}
"""
TORCHRUN = """ValueError: wrong shape (3,4)
E1116 04:33:01.312000 29696 torch/distributed/elastic/multiprocessing/api.py:1002] failed \
(exitcode: 1) local_rank: 0 (pid: 30470) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: bad.py FAILED
"""


def instance(name: str, role: str = "worker", **told: Any) -> dict[str, Any]:
    made = instance_record(f"net-{name}", role, (), awaited=role != "ps")
    return {**made, "phase": "FAILED", "ended_s": 1.0, **told}


DONE = instance("worker-0", phase="SUCCEEDED", code=0)
FAILED = instance("worker-1", code=3, tail="oh\nno\n", ended_s=5.0)
ENDED = instance("worker-2", signal="SIGTERM", stopped=True)


@pytest.mark.parametrize(
    ("instances", "reason", "message"),
    [([DONE, instance("ps-0", "ps")], "Completed", "done"),
     ([DONE, ENDED, FAILED], "Error", "worker-1 ended with exit code 3; its last output: no"),
     ([instance("worker-0", code=127)], "Error",
      "worker-0 ended with exit code 127 (no such command)"),
     ([instance("worker-0", code=137)], "Error",
      "worker-0 ended with exit code 137 (killed; it may use 1 GiB of memory)"),
     ([instance("worker-0", signal="SIGKILL")], "Killed", "worker-0 was killed by SIGKILL"),
     ([instance("worker-0", code=137, oom=True)], "OutOfMemory",
      "worker-0 was killed by SIGKILL: out of memory (limit 1 GiB)"),
     ([instance("launcher", "launcher", code=9, tail=MPIRUN)], "Error",
      "rank 3 ended with exit code 9; its last output: loss is nan"),
     ([instance("launcher", "launcher", code=9, tail=MPIRUN_IN_SHORT)], "Error",
      "launcher ended with exit code 9; its last output: loss is nan"),
     ([instance("master-0", code=1, tail=TORCHRUN)], "Error",
      "master-0 ended with exit code 1; its last output: ValueError: wrong shape (3,4)")],
)  # fmt: skip
def test_the_first_failure_is_the_reason(
    instances: list[dict[str, Any]], reason: str, message: str
) -> None:
    reported = outcome(instances, job="net", limit="1 GiB")
    assert (reported["reason"], reported["message"]) == (reason, message)


def printed(path: Path, data: bytes, most_bytes: int, piece: int = 1000) -> bytes:
    log = Log(path, most_bytes)
    for at in range(0, len(data), piece):
        log.take(data[at : at + piece])
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("piece", [100, 60_000])
@pytest.mark.parametrize("attempts", [1, 2])
def test_the_start_and_the_end_of_an_output_are_kept_with_a_count(
    tmp_path: Path, attempts: int, piece: int
) -> None:
    data = b"".join(b"line %06d\n" % number for number in range(20_000))
    kept = b""
    for _ in range(attempts):
        kept = printed(tmp_path / "log", data, 64 * 1024, piece)
    head, count, tail = re.split(rb"\n--- ([0-9,]+) bytes are missing here ---\n", kept)
    assert len(kept) <= 64 * 1024 + 100
    assert data.startswith(head)
    assert data.endswith(tail)
    assert min(len(head), len(tail)) >= 15 * 1024
    assert len(head) + len(tail) + int(count.replace(b",", b"")) == attempts * len(data)


def test_large_writes_and_long_lines_are_kept(tmp_path: Path) -> None:
    kept = printed(tmp_path / "1", b"x" * 99_999 + b"\n" + b"y\n" * 50_000, 16 * 1024, 100_000)
    assert kept.count(b"bytes are missing here") == 1
    data = b"line\n" + b"x" * 3 * MIB  # without an end
    assert printed(tmp_path / "2", data, 16 * MIB, 65536) == data


def test_secrets_are_redacted_across_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_known", ("open-sesame",))
    kept = printed(tmp_path / "log", b"key open-sesame\nsig=abc\xff open-sesame", MIB, 7)
    assert b"open-sesame" not in kept
    assert b"abc" not in kept
    assert kept.startswith(b"key ")


def test_a_full_disk_costs_the_log_and_not_the_job() -> None:
    log = Log(Path("/dev/full"), MIB)
    log.take(b"line\n")
    log.close()


def test_a_job_is_retried_with_growing_pauses_unless_it_can_never_start() -> None:
    pauses = [retry_pause_s(LOST, attempt, retries=9) for attempt in range(1, 11)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, None]
    assert retry_pause_s({**LOST, "final": True}, 1, retries=9) is None
    assert retry_pause_s({"ok": True}, 1, retries=9) is None
