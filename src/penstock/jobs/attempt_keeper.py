"""The keeper of one attempt of a job: `python -Pm penstock.jobs.attempt_keeper UID PAYLOAD LOCK`.

Starts the attempt's init, keeps what the instances print, enforces the timeout, and records the
outcome (`attempt.json`) before it releases its lock. The supervisor starts it, but it runs on
without the supervisor: a process that finds the lock taken waits for it. On SIGTERM it stops the
attempt; when it is killed, everything of the attempt dies with it. One thread.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from penstock import file_locks
from penstock.environment import take_inherited_keys
from penstock.jobs.attempt_init import GRACE_S
from penstock.jobs.cgroups import Group, group_places, make_group, remove_groups
from penstock.jobs.containers import out_of_memory, remove_containers
from penstock.jobs.job_folder import attempt_path, lock_path, log_path, write_record
from penstock.jobs.job_retry import outcome
from penstock.jobs.job_status import FAILED, RUNNING, SUCCEEDED, instance_record
from penstock.jobs.log_times import MISSING, LogTimes
from penstock.jobs.processes import children_of, end_marked, inner_pid
from penstock.reconcile.conditions import stamp
from penstock.reconcile.loop_control import wake_loop
from penstock.store.redaction import redact_bytes, remember
from penstock.units import format_size

# A line that is longer than this is cut.
_LINE_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_LEAST_BYTES = 4096
_TAIL_BYTES = 8192  # torchrun prints 3 KB after the last output of a process that has failed
_MARK_BYTES = 64  # more than the line of the mark needs


class Log:
    """What an instance prints, without secrets: its beginning and its end, bounded in size.

        beginning      the first half of the bound
        --- … bytes are missing here ---
        end            at most the other half; when it is full, its older half is dropped

    The instance never waits for the log, nor for a full disk. One thread writes. Readers may follow
    the file: when it is shorter than before, a part of the end has been dropped.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._half = max(_LEAST_BYTES, most_bytes) // 2
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        self._end_at = 0  # where the end begins, once something was dropped
        self._dropped = self._mark = 0  # bytes dropped, and the length of the mark
        self._partial = b""  # an unfinished line: redacted only once it is complete
        self._find_mark()
        self._times = LogTimes(path)

    def _find_mark(self) -> None:
        """Find the mark of an earlier attempt; the end begins there."""
        head = os.pread(self._file, min(self._size, self._half + _MARK_BYTES), 0)
        if found := list(MISSING.finditer(head)):
            self._end_at = found[-1].start()
            self._mark = len(found[-1][0])
            self._dropped = int(found[-1][1].replace(b",", b""))

    def take(self, data: bytes) -> None:
        data = self._partial + data
        # Progress bars end their lines with \r.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LINE_BYTES:
            end = len(data)
        self._partial = data[end:]
        self._write(data[:end])

    def note(self, line: str) -> None:
        """Write a line of our own."""
        self._write(self._partial + (b"\n" if self._partial else b""))
        self._partial = b""
        self._write(line.encode() + b"\n")

    def tail(self) -> str:
        size = min(self._size, _TAIL_BYTES)
        return os.pread(self._file, size, self._size - size).decode("utf-8", "replace")

    def close(self) -> None:
        self._write(self._partial)
        self._partial = b""
        self._times.close()
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        clean = redact_bytes(data)
        self._times.take(self._size - self._mark + self._dropped)
        try:
            if self._size + len(clean) > 2 * self._half:
                clean = self._make_room(clean)
            while clean:
                written = os.pwrite(self._file, clean, self._size)
                self._size += written
                clean = clean[written:]
        except OSError:
            self._dropped += len(clean)  # the disk is full: the job goes on

    def _make_room(self, clean: bytes) -> bytes:
        """Drop the older half of the end, or all of it; return what is to be written after it."""
        if not self._mark:
            self._end_at = min(self._half, self._size)
        end = self._size - self._end_at - self._mark
        kept = max(0, min(self._half // 2, end - _MARK_BYTES, self._half - len(clean)))
        if len(clean) > self._half:
            self._dropped += len(clean) - self._half
            clean, kept = clean[-self._half :], 0
        self._dropped += end - kept
        mark = f"\n--- {self._dropped:,} bytes are missing here ---\n".encode()
        self._move(self._size - kept, self._end_at + len(mark), kept)
        os.pwrite(self._file, mark, self._end_at)
        self._mark = len(mark)
        self._size = self._end_at + len(mark) + kept
        os.ftruncate(self._file, self._size)
        return clean

    def _move(self, source: int, target: int, size: int) -> None:
        """Move bytes towards the beginning; each piece is read before it is overwritten."""
        for at in range(0, size, _COPY_BYTES):
            piece = os.pread(self._file, min(_COPY_BYTES, size - at), source + at)
            os.pwrite(self._file, piece, target + at)


Json = dict[str, Any]

_PIECE_BYTES = 64 * 1024
_SAVE_RETRY_S = 1.0
# What a Python needs of the loop's environment to start.
_FOR_PYTHON = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class Keeper:
    def __init__(self, uid: str, payload: Json) -> None:
        self._uid = uid
        self._payload = payload
        self._folder = Path(payload["folder"])
        self._stopped: str | None = None
        self._is_stopping = False
        self._kill_at_s: float | None = None
        self._save_at_s: float | None = None
        self._cannot: Json | None = None
        self._partial = b""
        self._selector = selectors.DefaultSelector()
        self._instances: list[Json] = [
            instance_record(one["name"], one["role"], one["gpus"], awaited=one["awaited"])
            for one in payload["instances"]
        ]
        self._record: Json = {
            "run": payload["run"],
            "attempt": payload["attempt"],
            "keeper": os.getpid(),
            "init": None,
            "begun_s": time.time(),
            "engine": payload["engine"],
            "scratch": payload["scratch"],
            "isolated": not payload["contained"],
            "notes": [],
            "instances": self._instances,
            "groups": [] if payload["contained"] else group_places(uid),
            "outcome": None,
        }
        self._save()
        self._logs = [self._open_log(one["name"]) for one in payload["instances"]]
        self._groups = [self._make_group(one) for one in payload["instances"]]

    def run(self) -> None:
        self._wakes, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        self._selector.register(self._wakes, selectors.EVENT_READ, self._on_sigterm)
        outer = self._start_init()
        timeout_s = self._payload["timeout_s"]
        ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._report_is_open:
            for key, _ in self._selector.select(self._next_deadline_s(ends_at_s)):
                key.data()
            if ends_at_s is not None and time.monotonic() >= ends_at_s:
                ends_at_s = None
                self._stop("Timeout")
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                self._kill_at_s = None
                outer.kill()  # the kernel kills everything below it too
            if self._save_at_s is not None and time.monotonic() >= self._save_at_s:
                self._save()
        os.close(self._control)
        outer.wait()
        self._end()

    def _next_deadline_s(self, ends_at_s: float | None) -> float | None:
        deadlines = (ends_at_s, self._kill_at_s, self._save_at_s)
        due = [one for one in deadlines if one is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # -- before --------------------------------------------------------------------------

    def _open_log(self, name: str) -> Log:
        path = log_path(self._folder, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        is_new = not path.exists() or path.stat().st_size == 0
        log = Log(path, self._payload["max_log_bytes"])
        if not is_new:
            now = stamp(self._record["begun_s"])
            log.note(f"--- attempt {self._payload['attempt']} at {now} ---")
        return log

    def _make_group(self, one: Json) -> Group:
        cores, memory = self._payload["cores"], self._payload["memory_bytes"]
        if self._payload["contained"]:
            return Group((), None)  # the container engine sets the limits
        group, troubles = make_group(
            self._uid,
            one["name"],
            cores=None if cores is None else cores * one["workers"],
            memory_bytes=None if memory is None else memory * one["workers"],
        )
        for trouble in troubles:
            self._note("NoLimit", trouble)
        return group

    def _start_init(self) -> "subprocess.Popen[bytes]":
        report, report_end = os.pipe()
        control_end, self._control = os.pipe()
        outputs: list[int] = []
        for index in range(len(self._instances)):
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            outputs.append(writer)
            read = partial(self._read_output, reader, index)
            self._selector.register(reader, selectors.EVENT_READ, read)
        entrances = [group.entrances() for group in self._groups]
        descriptor = os.memfd_create("penstock-job", 0)
        keys = ("instances", "binds", "hidden", "cwd", "command", "contained")
        payload = {key: self._payload[key] for key in keys}
        payload |= {"parent": os.getpid(), "outputs": outputs, "entrances": entrances}
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(json.dumps(payload).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        passed = [descriptor, report_end, control_end, *outputs, *chain.from_iterable(entrances)]
        env = {name: os.environ[name] for name in _FOR_PYTHON if name in os.environ}
        try:
            outer = subprocess.Popen(
                [
                    sys.executable,
                    "-Pm",
                    "penstock.jobs.attempt_init",
                    str(descriptor),
                    str(report_end),
                    str(control_end),
                ],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={**env, "PENSTOCK_JOB": self._uid},
            )
        finally:
            for one in passed:
                os.close(one)
        self._outer = outer.pid
        self._report_is_open = True
        self._selector.register(report, selectors.EVENT_READ, lambda: self._read_report(report))
        return outer

    # -- while it runs -------------------------------------------------------------------

    def _read_output(self, reader: int, index: int) -> bool:
        """Return False if there is no more to read now."""
        try:
            piece = os.read(reader, _PIECE_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._selector.unregister(reader)
            os.close(reader)
            return False
        self._logs[index].take(piece)
        return True

    def _on_sigterm(self) -> None:
        os.read(self._wakes, 4096)
        self._stop("Stopped")

    def _stop(self, why: str) -> None:
        self._stopped = self._stopped or why
        if not self._is_stopping:
            self._is_stopping = True
            self._kill_at_s = time.monotonic() + GRACE_S + 2
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, b"stop")

    def _read_report(self, report: int) -> None:
        piece = os.read(report, _PIECE_BYTES)
        if not piece:
            self._selector.unregister(report)
            os.close(report)
            self._report_is_open = False
            return
        *lines, self._partial = (self._partial + piece).split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))
        self._save()

    def _on_message(self, message: Json) -> None:
        now_s = time.time()
        if "cannot" in message:
            self._cannot = message
        elif "without" in message:
            self._record["isolated"] = False
            self._note(
                "NoNamespace",
                f"{message['without']}; the job's processes are found by PENSTOCK_JOB",
            )
        elif "left" in message:
            self._note("LeftRunning", f"{message['left']} processes that it had left were ended")
        elif "started" in message:
            self._instances[message["started"]].update(
                phase=RUNNING, begun_s=now_s, pid=self._outer_pid(message["pid"])
            )
        elif "ended" in message:
            code: int = message["code"]
            how = {"signal": signal_name(-code)} if code < 0 else {"code": code}
            self._instances[message["ended"]].update(
                phase=SUCCEEDED if code == 0 else FAILED,
                ended_s=now_s,
                stopped=message["stopped"],
                **how,
            )

    def _outer_pid(self, pid: int) -> int | None:
        """Return the id that a process of the attempt's PID namespace has out here."""
        if self._record["init"] is None:
            self._record["init"] = next(iter(children_of(self._outer)), None)
        init = self._record["init"]
        found = () if init is None else children_of(init)
        return next((one for one in found if inner_pid(one) == pid), None)

    def _note(self, reason: str, message: str) -> None:
        if [reason, message] not in self._record["notes"]:
            self._record["notes"].append([reason, message])

    def _save(self) -> bool:
        """Write the record. False: it failed, as on a full disk, and is retried in a moment."""
        self._save_at_s = None
        try:
            write_record(attempt_path(self._folder), self._record)
        except FileNotFoundError:
            return True  # the job's folder was removed: nothing will read it
        except OSError:
            self._save_at_s = time.monotonic() + _SAVE_RETRY_S
            return False
        return True

    # -- after ---------------------------------------------------------------------------

    def _end(self) -> None:
        if not self._record["isolated"]:
            end_marked(self._uid, but=(os.getpid(),))
        engine: str | None = self._payload["engine"]
        for one, group in zip(self._instances, self._groups, strict=True):
            one["oom"] = (
                group.oom_kills() > 0
                if engine is None
                else out_of_memory(engine, self._uid, one["name"])
            )
        if engine is not None:
            remove_containers(engine, self._uid)
        for key in list(self._selector.get_map().values()):
            while key.fd != self._wakes and key.data():
                pass
        for one, log in zip(self._instances, self._logs, strict=True):
            one["tail"] = log.tail()
            if one["phase"] == RUNNING:
                one.update(phase=FAILED if one["awaited"] else SUCCEEDED, ended_s=time.time())
            one.pop("pid", None)
            log.close()
        self._record["outcome"] = self._outcome(self._exceeded_memory())
        self._record["ended_s"] = time.time()
        for one in self._instances:
            del one["tail"]
        remove_groups(self._record["groups"])
        shutil.rmtree(self._payload["scratch"], ignore_errors=True)
        # Before the lock is released: the next process to take it relies on the outcome.
        while not self._save():
            time.sleep(_SAVE_RETRY_S)

    def _exceeded_memory(self) -> str | None:
        """Return the memory limit, as text. A launcher has that of all its workers together."""
        memory: int | None = self._payload["memory_bytes"]
        if memory is None:
            return None
        pairs = zip(self._instances, self._payload["instances"], strict=True)
        workers: list[int] = [given["workers"] for one, given in pairs if one["oom"]]
        return format_size(memory * max(workers, default=1))

    def _outcome(self, limit: str | None) -> Json:
        if self._cannot is not None:
            return {
                "ok": False,
                "reason": "CannotStart",
                "message": self._cannot["cannot"],
                "hint": self._cannot["hint"],
                "final": True,
            }
        return outcome(
            self._instances,
            job=self._payload["name"],
            stopped=self._stopped,
            timeout_s=self._payload["timeout_s"],
            limit=limit,
        )


def signal_name(number: int) -> str:
    """Return the signal's name; of the real-time signals only the first and the last have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> int:
    os.environ.update(take_inherited_keys())
    uid, descriptor, lock = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)
    with os.fdopen(descriptor, "rb") as file:
        payload: Json = json.load(file)
    remember(*payload["secrets"])
    Keeper(uid, payload).run()
    os.close(lock)
    folder = Path(payload["folder"])
    if not file_locks.is_held(lock_path(folder)):
        # The supervisor was killed: the loop starts another one, which reads the outcome.
        wake_loop(Path(payload["state_folder"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
