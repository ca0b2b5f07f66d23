"""What the keeper tells of an attempt, in a file that is whole at any moment. Pure but for it."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.reconcile.conditions import Condition, stamp, with_conditions

Json = dict[str, Any]

PENDING, RUNNING, SUCCEEDED, FAILED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED"
QUEUING = "QUEUING"
ENDED = (SUCCEEDED, FAILED)

_MPIRUN = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)")
_RULE = re.compile(r"-{40,}")
# How launchers begin to speak of the end of those that they have launched.
_MPIRUN_SPEAKS = ("Primary job", "mpirun ", "mpiexec ")
_TORCHRUN_SPEAKS = re.compile(
    r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] (failed \(exitcode|Sending process)"
)


def read_record(path: Path) -> Json | None:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_record(path: Path, record: Json) -> None:
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(descriptor)  # what ran before a power cut is not started as if it had not
    fresh.replace(path)


def instance_record(name: str, role: str, gpus: Sequence[int], *, awaited: bool) -> Json:
    return {"name": name, "role": role, "phase": PENDING, "gpus": list(gpus), "awaited": awaited}


def shown_instance(one: Mapping[str, Any]) -> Json:
    """As a job's status has it."""
    shown = {key: one[key] for key in ("name", "role", "phase", "gpus")}
    for key, name in (("begun_s", "startTime"), ("ended_s", "completionTime")):
        if key in one:
            shown[name] = stamp(one[key])
    for key, name in (("code", "exitCode"), ("signal", "signal"), ("pid", "pid")):
        if one.get(key) is not None:
            shown[name] = one[key]
    return shown


def last_instances(record: Mapping[str, Any], now_s: float) -> list[Json]:
    """As they are shown when nobody keeps the attempt any more: one that it says runs is gone."""
    gone: Json = {"phase": FAILED, "ended_s": now_s, "pid": None}
    return [
        shown_instance({**one, **gone} if one["phase"] == RUNNING else one)
        for one in record["instances"]
    ]


def ended_status(
    phase: str, reason: str, message: str, record: Mapping[str, Any] | None, now_s: float
) -> Json:
    """Of a job that has ended; `record`: of its last attempt, if it had one."""
    condition = Condition(phase.capitalize(), True, reason, message)
    status: Json = {
        "phase": phase,
        "reason": reason,
        "message": message,
        "gpusAllocated": 0,
        "completionTime": stamp(now_s),
        "conditions": with_conditions([], [condition], now_s, probed=True),
    }
    if record is not None:
        status["instances"] = last_instances(record, now_s)
    return status


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


# Where a job keeps what is its own. Pure, but for a look at which logs there are.

LOG_SUFFIX = ".log"


def job_folder(state_folder: Path, uid: str) -> Path:
    """Private. Kept until the job is deleted."""
    return state_folder / "jobs" / uid


def lock_path(folder: Path) -> Path:
    """Held by the job's supervisor for as long as it lives."""
    return folder / "lock"


def keeper_lock_path(folder: Path) -> Path:
    """Held by the keeper of the attempt that runs."""
    return folder / "keeper.lock"


def attempt_path(folder: Path) -> Path:
    """What the keeper tells of the newest attempt, as JSON."""
    return folder / "attempt.json"


def log_path(folder: Path, instance: str) -> Path:
    return folder / "logs" / f"{instance}{LOG_SUFFIX}"


def instance_logs(folder: Path) -> list[Path]:
    """Those that there are."""
    return sorted((folder / "logs").glob(f"*{LOG_SUFFIX}"))
