"""Programs that tests start. None of them outlives the test process, however that ends."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import environ
from pathlib import Path

from tests.support.waiting import wait_until

# The kernel kills the program when the thread that started it is gone: also after a SIGKILL of
# pytest, which no fixture survives.
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


def start(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, log: Path | None = None
) -> "subprocess.Popen[bytes]":
    prefix = _DIES_WITH_US if shutil.which(_DIES_WITH_US[0]) else ()
    with open(log or "/dev/null", "wb") as output:
        return subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environ, **(env or {})},
        )


@contextmanager
def running(
    command: Sequence[str | Path],
    port: int | None = None,
    *,
    ready: Callable[[], object] | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server, once it listens on `port` or is `ready`, and until the context ends."""
    process = start(command, env=env, log=log)

    def is_up() -> object:
        assert process.poll() is None, f"{command[0]} ended with status {process.returncode}"
        return ready() if ready is not None else port is None or listens(port)

    try:
        wait_until(is_up, f"{command[0]} does not answer")
        yield process
    finally:
        process.kill()
        process.wait()


def commands() -> dict[int, list[bytes]]:
    """The words of each process of this machine."""
    found: dict[int, list[bytes]] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found[int(path.parent.name)] = path.read_bytes().split(b"\0")
    return found


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
