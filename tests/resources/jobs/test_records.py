"""Why an attempt ended, in words."""

from typing import Any

import pytest

from penstock.resources.jobs.records import instance_record, outcome

# What mpirun and torchrun print when a process fails. mpirun may leave its second part out.
MPIRUN_IN_SHORT = f"""loss is nan
{"-" * 74}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{"-" * 74}
"""
MPIRUN = f"""{MPIRUN_IN_SHORT}{"-" * 74}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[17422,1],3]
  Exit code:    9
{"-" * 74}
"""
TORCHRUN = f"""Traceback (most recent call last):
  File "bad.py", line 1, in <module>
ValueError: wrong shape (3,4)
E1116 04:33:01.312000 29696 torch/distributed/elastic/multiprocessing/api.py:1002] failed \
(exitcode: 1) local_rank: 0 (pid: 30470) of binary: python
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{"=" * 60}
bad.py FAILED
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
{"=" * 60}
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
      "rank 3 ended with exit code 9; it said last: loss is nan"),
     ([instance("launcher", "launcher", code=9, tail=MPIRUN_IN_SHORT)], "Error",
      "launcher ended with exit code 9; it said last: loss is nan"),
     ([instance("master-0", code=1, tail=TORCHRUN)], "Error",
      "master-0 ended with exit code 1; it said last: ValueError: wrong shape (3,4)")],
)  # fmt: skip
def test_the_first_that_failed_is_named(
    instances: list[dict[str, Any]], reason: str, message: str
) -> None:
    told = outcome(instances, job="net", limit="1 GiB")
    assert (told["reason"], told["message"]) == (reason, message)


def test_one_that_was_stopped_says_why() -> None:
    told = outcome([ENDED], job="net", stopped="Timeout", timeout_s=60)
    assert (told["reason"], told["message"]) == ("Timeout", "timeout after 60s")
