"""Why an attempt ended, in words."""

from typing import Any

import pytest

from penstock.resources.jobs.records import instance_record, outcome

MPIRUN = """loss is nan
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[17422,1],3]
  Exit code:    9
--------------------------------------------------------------------------
"""


def instance(name: str, role: str = "worker", **told: Any) -> dict[str, Any]:
    made = instance_record(f"net-{name}", role, (), awaited=role != "ps")
    return {**made, "phase": "FAILED", "ended_s": 1.0, **told}


DONE = instance("worker-0", phase="SUCCEEDED", code=0)
FAILED = instance("worker-1", code=3, tail="oh\nno\n", ended_s=5.0)
ENDED = instance("worker-2", signal="SIGTERM", stopped=True)


@pytest.mark.parametrize(
    ("instances", "reason", "message"),
    [([DONE], "Completed", "done"),
     ([DONE, instance("ps-0", "ps")], "Completed", "done"),
     ([DONE, ENDED, FAILED], "Error", "worker-1 ended with exit code 3; it said last: no"),
     ([instance("worker-0", code=127)], "Error",
      "worker-0 ended with exit code 127 (no such command)"),
     ([instance("worker-0", signal="SIGKILL")], "Killed", "worker-0 was killed by SIGKILL"),
     ([instance("worker-0", code=137, oom=True)], "OutOfMemory",
      "worker-0 was killed by SIGKILL: out of memory (limit 1 GiB)"),
     ([instance("launcher", "launcher", code=9, tail=MPIRUN)], "Error",
      "rank 3 ended with exit code 9; it said last: loss is nan")],
)  # fmt: skip
def test_the_first_that_failed_is_named(
    instances: list[dict[str, Any]], reason: str, message: str
) -> None:
    told = outcome(instances, job="net", limit="1 GiB")
    assert (told["reason"], told["message"]) == (reason, message)


def test_one_that_was_stopped_says_why() -> None:
    told = outcome([ENDED], job="net", stopped="Timeout", timeout_s=60)
    assert (told["reason"], told["message"]) == ("Timeout", "timeout after 60s")
