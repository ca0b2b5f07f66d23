"""Why an attempt of a job ended, and whether the job is retried. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.jobs.job_status import SUCCEEDED

Json = dict[str, Any]

# Before the second attempt, the third, …: like the back-off of a pod that keeps failing.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0

# How launchers begin their own report of a process that has failed.
_MPIRUN_RESULT = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)")
_MPIRUN_RULE = re.compile(r"-{40,}")
_MPIRUN_REPORT = ("Primary job", "mpirun ", "mpiexec ")
_TORCHRUN_REPORT = re.compile(
    r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] (failed \(exitcode|Sending process)"
)

# The outcome of an attempt whose keeper died before it could write one.
LOST: Json = {
    "ok": False,
    "reason": "Lost",
    "message": "its processes are gone: they were killed, or the machine was restarted",
}


def retry_pause_s(outcome: Json, attempt: int, retries: int) -> float | None:
    """Return the pause before the next attempt; None if there is none.

    `attempt`: the number of the one that ended, from 1. A final outcome is never retried: the job
    could not be started, so it would fail in the same way again.
    """
    if outcome["ok"] or outcome.get("final") or attempt > retries:
        return None
    return min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)


def outcome(
    instances: Sequence[Mapping[str, Any]],
    *,
    job: str,
    stopped: str | None = None,
    timeout_s: float | None = None,
    limit: str | None = None,
) -> Json:
    """Return why an attempt ended.

    `stopped`: Timeout or Stopped, if it was ended from outside. `limit`: the memory limit that was
    exceeded, as text.
    """
    if stopped == "Timeout":
        return _failed("Timeout", f"timeout after {timeout_s:g}s")
    if stopped is not None:
        return _failed(stopped, "it was stopped")
    failed = [one for one in instances if one["awaited"] and one["phase"] != SUCCEEDED]
    if not failed:
        return {"ok": True, "reason": "Completed", "message": "done"}
    # The first one that failed by itself; the others were stopped because of it.
    first = min(failed, key=lambda one: (one.get("stopped", False), one.get("ended_s", 1e12)))
    who = str(first["name"]).removeprefix(f"{job}-")
    if any(one.get("oom") for one in instances):
        of = f" (limit {limit})" if limit else ""
        what = f"{who} was killed by SIGKILL: out of memory{of}"
        return {**_failed("OutOfMemory", what), "hint": "give it more with --memory"}
    if first.get("signal"):
        return _failed("Killed", f"{who} was killed by {first['signal']}")
    if "code" not in first:
        return _failed("Lost", f"{who} is gone")
    code, text = first["code"], str(first.get("tail") or "")
    if first["role"] == "launcher" and (found := _MPIRUN_RESULT.search(text)) is not None:
        who, code = f"rank {found[1]}", int(found[2])
    what = f"{who} ended with exit code {code}"
    if code == 127:
        what += " (no such command)"
    elif code == 137:  # 128 and SIGKILL, as shells and containers report it
        what += f" (killed; it may use {limit} of memory)" if limit else " (killed)"
    last = last_words(text)
    return _failed("Error", what + (f"; its last output: {last}" if last else ""))


def last_words(text: str) -> str:
    """Return the last line that the job itself wrote, not its launcher.

    A launcher reports a failure after the job's own output: mpirun between lines of dashes,
    torchrun with a traceback and a table.
    """
    lines = [line.strip() for line in text.splitlines()]
    for at, line in enumerate(lines):
        after = lines[at + 1] if at + 1 < len(lines) else ""
        if _TORCHRUN_REPORT.search(line) or (
            _MPIRUN_RULE.fullmatch(line) and after.startswith(_MPIRUN_REPORT)
        ):
            lines = lines[:at]
            break
    lines = [line for line in lines if any(map(str.isalnum, line)) and not line.startswith("--- ")]
    return lines[-1][:300] if lines else ""


def _failed(reason: str, message: str) -> Json:
    return {"ok": False, "reason": reason, "message": message}
