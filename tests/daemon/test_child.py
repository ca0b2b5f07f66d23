"""When a server that was killed may be replaced though it is not gone."""

import subprocess
import sys
from pathlib import Path

from penstock.daemon.server_process import cannot_run
from tests.support.waiting import wait_until

# Its first thread ends alone (exit, and not exit_group), and another sleeps on.
HEADLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
"""


def test_a_process_with_a_runnable_thread_is_not_half_dead() -> None:
    """It might take a request with it that the next server has just asked the kernel for."""
    process = subprocess.Popen([sys.executable, "-c", HEADLESS])
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "headless")
        assert not cannot_run(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not cannot_run(process.pid), "it is gone altogether"
