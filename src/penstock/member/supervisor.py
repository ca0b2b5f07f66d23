"""The supervisor of a member: `python -Pm penstock.member.supervisor NOTE LOCK REPORT`.

It starts memcached, and starts it again when that ends, with pauses that double when it ends again
and again. SIGTERM and SIGINT end both. LOCK is the descriptor of the member's lock; REPORT that of
a pipe to the command that waits for the member, or -1 in the foreground.

memcached gets no keys, no environment and, where we are root, another user: it parses what others
send. It dies with its supervisor. What it keeps on flash is in a file without a name that this
process holds: nothing is left of it, however both end. The supervisor has one thread.
"""

import contextlib
import ctypes
import json
import logging
import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from penstock import file_locks
from penstock.cache.member_stats import NotMemcached, ask_member
from penstock.daemon.log_file import open_log
from penstock.errors import PenstockError, UsageError
from penstock.member.note import (
    MemberNote,
    advice,
    lock_path,
    reachable_host,
    read_note,
    write_note,
)
from penstock.member.options import LEAST_VERSION, command_line
from penstock.paths import open_private
from penstock.store.redaction import set_up_logging

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_END = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
_READY_WITHIN_S = 20.0
_POLL_S = 0.02
# Debian's package has made the first of them.
_USERS = ("memcache", "memcached", "nobody")
_STABLE_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class Supervisor:
    def __init__(self, path: Path, note: MemberNote) -> None:
        self._path = path
        self._note = replace(note, pid=os.getpid())
        self._program = find_memcached()
        self._flash = _open_flash(note)
        self._member: subprocess.Popen[bytes] | None = None
        self._log_offset = 0  # where memcached began to print
        self._wait_s = _FIRST_WAIT_S

    def start(self) -> None:
        """Start memcached and wait until it answers. Raises UsageError if it does not start."""
        member = self._spawn()
        until_s = time.monotonic() + _READY_WITHIN_S
        options = self._note.options
        while True:
            if (status := member.poll()) is not None:
                raise UsageError(
                    f"memcached did not start: {self._last_words() or _described(status)}",
                    hint="check --listen, --port and --flash",
                )
            with contextlib.suppress(OSError, NotMemcached):
                ask_member(reachable_host(options), options.port)
                break
            if time.monotonic() > until_s:
                self.end()
                raise PenstockError(
                    f"memcached does not answer after {_READY_WITHIN_S:g} s",
                    hint=f"its log: {self._note.log}" if self._note.log else None,
                )
            if signal.sigtimedwait(_END, _POLL_S) is not None:
                self.end()
                raise PenstockError("it was ended before it was ready")
        self._change(state="running", member_pid=member.pid, started_s=time.time())

    def run(self) -> None:
        """Keep memcached running until a signal ends this process."""
        while True:
            assert self._member is not None
            began_s = time.monotonic()
            while self._member.poll() is None:
                number = signal.sigtimedwait({*_END, signal.SIGCHLD}, _STABLE_S)
                if number is not None and number.si_signo in _END:
                    self.end()
                    return
            if self._wait_and_restart(lived_s=time.monotonic() - began_s):
                return

    def end(self) -> None:
        """End memcached, and wait for that. For SIGTERM it takes a second, and saves nothing."""
        if self._member is not None:
            self._member.kill()
            self._member.wait()

    # -- memcached ---------------------------------------------------------------------------

    def _wait_and_restart(self, *, lived_s: float) -> bool:
        """Start memcached again once it stays up. True: a signal asks this process to end."""
        assert self._member is not None
        how = _described(self._member.returncode)
        while True:
            self._wait_s = _FIRST_WAIT_S if lived_s >= _STABLE_S else self._wait_s
            log.warning("memcached ended: %s; it starts again in %g s", how, self._wait_s)
            ended = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {how}"
            restarts = self._note.restarts + 1
            self._change(state="waiting", member_pid=None, restarts=restarts, last_end=ended)
            if signal.sigtimedwait(_END, self._wait_s) is not None:
                return True
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            try:
                self.start()
            except PenstockError as error:
                how, lived_s = str(error), 0.0
            else:
                return False

    def _spawn(self) -> "subprocess.Popen[bytes]":
        options, flash = self._note.options, self._flash
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        command = command_line(
            self._program,
            options,
            cores=len(os.sched_getaffinity(0)),
            most_files=most_files if most_files != resource.RLIM_INFINITY else 1 << 20,
            flash_file="" if flash is None else f"/proc/self/fd/{flash.fileno()}",
        )
        log.info("%s", " ".join(command))
        user = _other_user()
        if user is not None and flash is not None:
            os.fchown(flash.fileno(), user.pw_uid, user.pw_gid)
        self._log_offset = self._log_size()
        try:
            with self._output() as output:
                self._member = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=() if flash is None else (flash.fileno(),),
                    env={"PATH": os.defpath},
                    cwd="/",
                    preexec_fn=_unblock_and_die_with_parent,
                    user=None if user is None else user.pw_uid,
                    group=None if user is None else user.pw_gid,
                    extra_groups=None if user is None else (),
                )
        except OSError as error:
            as_user = "" if user is None else f" as the user {user.pw_name}"
            raise UsageError(
                f"{self._program} cannot be run{as_user}: {error.strerror}",
                hint="install it where every user can run it: apt-get install memcached",
            ) from error
        return self._member

    # -- what it prints ----------------------------------------------------------------------

    def _output(self) -> IO[bytes]:
        """Where memcached prints: its log, or our stderr in the foreground."""
        if self._note.log is None:
            return os.fdopen(os.dup(sys.stderr.fileno()), "wb")
        return open(self._note.log, "ab", opener=open_private)

    def _log_size(self) -> int:
        return 0 if self._note.log is None else os.path.getsize(self._note.log)

    def _last_words(self) -> str | None:
        """Return what memcached has printed since it was started; None in the foreground."""
        if self._note.log is None:
            return None
        with open(self._note.log, "rb", opener=open_private) as file:
            file.seek(self._log_offset)
            lines = file.read(4096).decode("utf-8", "replace").splitlines()
        return "; ".join(line.strip() for line in lines if line.strip()) or None

    def _change(self, **changes: Any) -> None:
        self._note = replace(self._note, **changes)
        write_note(self._path, self._note)


def find_memcached() -> str:
    """Return the path of memcached, or raise UsageError if it is missing or too old."""
    hint = "apt-get install memcached"
    program = shutil.which("memcached") or shutil.which("memcached", path="/usr/bin:/usr/local/bin")
    if program is None:
        raise UsageError("memcached is not installed", hint=hint)
    answer = subprocess.run(
        [program, "-V"], capture_output=True, text=True, timeout=10, check=False
    ).stdout
    version = re.search(r"(\d+)\.(\d+)", answer)
    if version is None or (int(version[1]), int(version[2])) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise UsageError(
            f"{program} is {answer.strip() or 'no memcached'}; at least {least} is needed",
            hint=hint,
        )
    return program


def _open_flash(note: MemberNote) -> IO[bytes] | None:
    """Return a file without a name: the kernel removes it with the last process that has it."""
    flash = note.options.flash
    if flash is None:
        return None
    try:
        return tempfile.TemporaryFile(dir=flash.folder, buffering=0)
    except OSError as error:
        raise UsageError(
            f"--flash {flash.folder}: {error.strerror}",
            hint="give a folder that exists and that you may write to",
        ) from error


def _other_user() -> "pwd.struct_passwd | None":
    """Return the user that memcached runs as where we are root; None where we are not."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise UsageError(
        f"none of the users {', '.join(_USERS)} exists", hint="memcached must not run as root"
    )


def _unblock_and_die_with_parent() -> None:
    """In the child, before exec: this process blocks signals and waits for them by itself."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _described(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    killed = f"it was killed by {signal.Signals(-status).name}"
    return f"{killed}; is the machine out of memory?" if -status == signal.SIGKILL else killed


class _Reporter:
    """Reports once to the command that waits, or to a person in the foreground."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def ready(self, note: MemberNote) -> None:
        if self._descriptor >= 0:
            self._send({"ready": True})
            os.close(self._descriptor)
            self._descriptor = -1
        else:
            for line in (f"a member of the shared tier serves {note.address}", *advice(note)):
                print(line, file=sys.stderr)
            sys.stderr.flush()

    def failed(self, error: PenstockError) -> None:
        if self._descriptor >= 0:
            # The pipe stays open until this process has cleaned up.
            self._send({"error": str(error), "hint": error.hint, "exit_code": error.exit_code})
            return
        print(f"penstock: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # Ctrl-C: nobody waits; the member runs on
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")


def main() -> None:
    path, lock, report = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if report >= 0 and os.fork():
        os._exit(0)  # detached: the command that started it need not wait for its end
    os.set_inheritable(lock, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_END, signal.SIGCHLD})
    note = read_note(path)
    assert note is not None
    set_up_logging(open_log(note.log), prefix="shared: ", level="INFO")
    reporter = _Reporter(report)
    exit_code = 0
    supervisor: Supervisor | None = None
    try:
        supervisor = Supervisor(path, note)
        supervisor.start()
        reporter.ready(note)
        supervisor.run()
    except PenstockError as error:
        reporter.failed(error)
        exit_code = error.exit_code
    finally:
        if supervisor is not None:
            supervisor.end()
        path.unlink(missing_ok=True)
        file_locks.release(lock_path(note.port), lock)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
