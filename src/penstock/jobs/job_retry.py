"""Why an attempt ended. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.jobs.job_status import SUCCEEDED

Json = dict[str, Any]

_MPIRUN = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)")
_RULE = re.compile(r"-{40,}")
# How launchers begin to speak of the end of those that they have launched.
_MPIRUN_SPEAKS = ("Primary job", "mpirun ", "mpiexec ")
_TORCHRUN_SPEAKS = re.compile(
    r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] (failed \(exitcode|Sending process)"
)


def outcome(
    instances: Sequence[Mapping[str, Any]],
    *,
    job: str,
    stopped: str | None = None,
    timeout_s: float | None = None,
    limit: str | None = None,
) -> Json:
    """Why an attempt ended. `stopped`: Timeout or Stopped, if it did not end by itself; `limit`:
    the memory that was too little, in words."""
    if stopped == "Timeout":
        return _failed("Timeout", f"timeout after {timeout_s:g}s")
    if stopped is not None:
        return _failed(stopped, "it was stopped")
    failed = [one for one in instances if one["awaited"] and one["phase"] != SUCCEEDED]
    if not failed:
        return {"ok": True, "reason": "Completed", "message": "done"}
    # The others were ended because of it.
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
    if first["role"] == "launcher" and (told := _MPIRUN.search(text)) is not None:
        who, code = f"rank {told[1]}", int(told[2])
    what = f"{who} ended with exit code {code}"
    if code == 127:
        what += " (no such command)"
    elif code == 137:  # 128 and SIGKILL: a shell's or a container's way to say it
        what += f" (killed; it may use {limit} of memory)" if limit else " (killed)"
    last = last_words(text)
    return _failed("Error", what + (f"; it said last: {last}" if last else ""))


def last_words(text: str) -> str:
    """The last line that somebody of the job wrote, and not the launcher, whose words come after:
    mpirun's between lines of dashes, torchrun's with a traceback and a table of their own."""
    lines = [line.strip() for line in text.splitlines()]
    for at, line in enumerate(lines):
        after = lines[at + 1] if at + 1 < len(lines) else ""
        if _TORCHRUN_SPEAKS.search(line) or (
            _RULE.fullmatch(line) and after.startswith(_MPIRUN_SPEAKS)
        ):
            lines = lines[:at]
            break
    told = [line for line in lines if any(map(str.isalnum, line)) and not line.startswith("--- ")]
    return told[-1][:300] if told else ""


def _failed(reason: str, message: str) -> Json:
    return {"ok": False, "reason": reason, "message": message}
