"""The keeper of one attempt of a job: `python -Pm penstock.jobs.attempt_keeper UID TOLD LOCK`.

Starts the attempt's init, keeps what the instances print, ends what takes too long, and writes
down what became of it (`attempt.json`) before it lets go of its lock. Started by the supervisor,
and goes on without it: whoever finds the lock taken waits for it. Asked to end (SIGTERM) it stops
the attempt; killed, everything dies with it. One thread.
"""

import contextlib
import json
import os
import re
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
from penstock.jobs.processes import children_of, end_marked, inner_pid
from penstock.reconcile.conditions import stamp
from penstock.reconcile.loop_control import wake_loop
from penstock.store.redaction import redact_bytes, remember
from penstock.units import format_size

# What an instance prints, kept: cleaned of secrets, its beginning and its end, never more than so
# much. Whoever prints never waits for it, nor for a full disk.
#
#     beginning      the first half of what is kept
#     --- … bytes are missing here ---
#     end            at most the other half: when it is full, its older half is dropped
#
# Threading: one thread writes. Readers may follow the file; when it is shorter than it was, a
# part of the end has been dropped.

# A line without an end is cut here.
_LINE_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_LEAST_BYTES = 4096
_TAIL_BYTES = 8192  # torchrun says 3 KB after the words of a process that has failed
_MARK = re.compile(rb"\n--- ([0-9,]+) bytes are missing here ---\n")
_MARK_BYTES = 64  # more than the line needs that tells what is missing


class Log:
    def __init__(self, path: Path, most_bytes: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._half = max(_LEAST_BYTES, most_bytes) // 2
        self._size = os.lseek(self._file, 0, os.SEEK_END)
        self._end_at = 0  # where the end begins, once something was dropped
        self._dropped = self._mark = 0  # bytes, and the length of the line that tells so
        self._held = b""
        self._find_mark()

    def _find_mark(self) -> None:
        """Of an attempt before this one, which has dropped some. It is where the end begins."""
        head = os.pread(self._file, min(self._size, self._half + _MARK_BYTES), 0)
        if found := list(_MARK.finditer(head)):
            self._end_at = found[-1].start()
            self._mark = len(found[-1][0])
            self._dropped = int(found[-1][1].replace(b",", b""))

    def take(self, data: bytes) -> None:
        data = self._held + data
        # The bars that show progress end their lines with \r.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LINE_BYTES:
            end = len(data)
        self._held = data[end:]
        self._write(data[:end])

    def note(self, line: str) -> None:
        """A line of our own."""
        self._write(self._held + (b"\n" if self._held else b""))
        self._held = b""
        self._write(line.encode() + b"\n")

    def tail(self) -> str:
        size = min(self._size, _TAIL_BYTES)
        return os.pread(self._file, size, self._size - size).decode("utf-8", "replace")

    def close(self) -> None:
        self._write(self._held)
        self._held = b""
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        clean = redact_bytes(data)
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
        """Drops the older half of the end, or all of it; what comes after it is returned."""
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
        """Towards the beginning; what overlaps is read before it is written over."""
        for at in range(0, size, _COPY_BYTES):
            piece = os.pread(self._file, min(_COPY_BYTES, size - at), source + at)
            os.pwrite(self._file, piece, target + at)


Json = dict[str, Any]

_PIECE_BYTES = 64 * 1024
_SAVE_AGAIN_S = 1.0
# Of the environment that the loop has, all that a Python needs to start.
_FOR_PYTHON = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class Keeper:
    def __init__(self, uid: str, told: Json) -> None:
        self._uid = uid
        self._told = told
        self._folder = Path(told["folder"])
        self._stopped: str | None = None
        self._is_stopping = False
        self._kill_at_s: float | None = None
        self._save_at_s: float | None = None
        self._cannot: Json | None = None
        self._pieces = b""
        self._selector = selectors.DefaultSelector()
        self._instances: list[Json] = [
            instance_record(one["name"], one["role"], one["gpus"], awaited=one["awaited"])
            for one in told["instances"]
        ]
        self._record: Json = {
            "run": told["run"],
            "attempt": told["attempt"],
            "keeper": os.getpid(),
            "init": None,
            "begun_s": time.time(),
            "engine": told["engine"],
            "scratch": told["scratch"],
            "isolated": not told["contained"],
            "notes": [],
            "instances": self._instances,
            "groups": [] if told["contained"] else group_places(uid),
            "outcome": None,
        }
        self._save()
        self._logs = [self._log(one["name"]) for one in told["instances"]]
        self._groups = [self._group(one) for one in told["instances"]]

    def run(self) -> None:
        self._wakes, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        self._selector.register(self._wakes, selectors.EVENT_READ, self._asked_to_end)
        outer = self._start_init()
        timeout_s = self._told["timeout_s"]
        ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._report_is_open:
            for key, _ in self._selector.select(self._patience_s(ends_at_s)):
                key.data()
            if ends_at_s is not None and time.monotonic() >= ends_at_s:
                ends_at_s = None
                self._stop("Timeout")
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                self._kill_at_s = None
                outer.kill()  # and with it all that is below
            if self._save_at_s is not None and time.monotonic() >= self._save_at_s:
                self._save()
        os.close(self._control)
        outer.wait()
        self._end()

    def _patience_s(self, ends_at_s: float | None) -> float | None:
        all_due = (ends_at_s, self._kill_at_s, self._save_at_s)
        due = [one for one in all_due if one is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # -- before --------------------------------------------------------------------------

    def _log(self, name: str) -> Log:
        path = log_path(self._folder, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        is_new = not path.exists() or path.stat().st_size == 0
        log = Log(path, self._told["max_log_bytes"])
        if not is_new:
            now = stamp(self._record["begun_s"])
            log.note(f"--- attempt {self._told['attempt']} at {now} ---")
        return log

    def _group(self, one: Json) -> Group:
        cores, memory = self._told["cores"], self._told["memory_bytes"]
        if self._told["contained"]:
            return Group((), None)  # docker sees to it
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
            hear = partial(self._heard, reader, index)
            self._selector.register(reader, selectors.EVENT_READ, hear)
        entrances = [group.entrances() for group in self._groups]
        descriptor = os.memfd_create("penstock-job", 0)
        keys = ("instances", "binds", "hidden", "cwd", "command", "contained")
        words = {key: self._told[key] for key in keys}
        words |= {"parent": os.getpid(), "outputs": outputs, "entrances": entrances}
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(json.dumps(words).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        handed = [descriptor, report_end, control_end, *outputs, *chain.from_iterable(entrances)]
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
                pass_fds=handed,
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={**env, "PENSTOCK_JOB": self._uid},
            )
        finally:
            for one in handed:
                os.close(one)
        self._outer = outer.pid
        self._report_is_open = True
        self._selector.register(report, selectors.EVENT_READ, lambda: self._told_by_init(report))
        return outer

    # -- while it runs -------------------------------------------------------------------

    def _heard(self, reader: int, index: int) -> bool:
        """False when there is no more, now or ever."""
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

    def _asked_to_end(self) -> None:
        os.read(self._wakes, 4096)
        self._stop("Stopped")

    def _stop(self, why: str) -> None:
        self._stopped = self._stopped or why
        if not self._is_stopping:
            self._is_stopping = True
            self._kill_at_s = time.monotonic() + GRACE_S + 2
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, b"stop")

    def _told_by_init(self, report: int) -> None:
        piece = os.read(report, _PIECE_BYTES)
        if not piece:
            self._selector.unregister(report)
            os.close(report)
            self._report_is_open = False
            return
        *lines, self._pieces = (self._pieces + piece).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        self._save()

    def _take(self, said: Json) -> None:
        now_s = time.time()
        if "cannot" in said:
            self._cannot = said
        elif "without" in said:
            self._record["isolated"] = False
            self._note(
                "NoNamespace", f"{said['without']}; processes of it are found by PENSTOCK_JOB"
            )
        elif "left" in said:
            self._note("LeftRunning", f"{said['left']} processes that it had left were ended")
        elif "started" in said:
            self._instances[said["started"]].update(
                phase=RUNNING, begun_s=now_s, pid=self._outside(said["pid"])
            )
        elif "ended" in said:
            code: int = said["code"]
            how = {"signal": signal_name(-code)} if code < 0 else {"code": code}
            self._instances[said["ended"]].update(
                phase=SUCCEEDED if code == 0 else FAILED,
                ended_s=now_s,
                stopped=said["stopped"],
                **how,
            )

    def _outside(self, pid: int) -> int | None:
        """The number that a process of the namespace has out here."""
        if self._record["init"] is None:
            self._record["init"] = next(iter(children_of(self._outer)), None)
        init = self._record["init"]
        found = () if init is None else children_of(init)
        return next((one for one in found if inner_pid(one) == pid), None)

    def _note(self, reason: str, message: str) -> None:
        if [reason, message] not in self._record["notes"]:
            self._record["notes"].append([reason, message])

    def _save(self) -> bool:
        """False: the disk is full, or the like. It is in memory, and tried again in a moment."""
        self._save_at_s = None
        try:
            write_record(attempt_path(self._folder), self._record)
        except FileNotFoundError:
            return True  # the folder is gone: nobody will ask
        except OSError:
            self._save_at_s = time.monotonic() + _SAVE_AGAIN_S
            return False
        return True

    # -- after ---------------------------------------------------------------------------

    def _end(self) -> None:
        if not self._record["isolated"]:
            end_marked(self._uid, but=(os.getpid(),))
        engine: str | None = self._told["engine"]
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
        self._record["outcome"] = self._outcome(self._memory_that_was_too_little())
        self._record["ended_s"] = time.time()
        for one in self._instances:
            del one["tail"]
        remove_groups(self._record["groups"])
        shutil.rmtree(self._told["scratch"], ignore_errors=True)
        while not self._save():  # who gets the lock then takes what it says for the end
            time.sleep(_SAVE_AGAIN_S)

    def _memory_that_was_too_little(self) -> str | None:
        """A launcher has that of all its workers."""
        memory: int | None = self._told["memory_bytes"]
        if memory is None:
            return None
        pairs = zip(self._instances, self._told["instances"], strict=True)
        workers: list[int] = [told["workers"] for one, told in pairs if one["oom"]]
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
            job=self._told["name"],
            stopped=self._stopped,
            timeout_s=self._told["timeout_s"],
            limit=limit,
        )


def signal_name(number: int) -> str:
    """Of those in real time only the first and the last have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> int:
    os.environ.update(take_inherited_keys())
    uid, descriptor, lock = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)
    with os.fdopen(descriptor, "rb") as file:
        told: Json = json.load(file)
    remember(*told["secrets"])
    Keeper(uid, told).run()
    os.close(lock)
    folder = Path(told["folder"])
    if not file_locks.is_held(lock_path(folder)):
        wake_loop(Path(told["state_folder"]))  # its supervisor is gone: another takes the result
    return 0


if __name__ == "__main__":
    sys.exit(main())
