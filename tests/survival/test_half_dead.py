"""A server that was killed while one of its threads waits in the kernel for a page.

The page is locked by a read that only the next server answers, and the killed one is not gone
before it has the page: whoever waits for its end waits for ever.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.integrations.plans import open_plan
from tests.support.faults import Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kills import note
from tests.support.mounts import Mounter, penstock
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until, wait_until_gone


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.endpoint, seed=1) as proxy:
        yield proxy


@pytest.mark.parametrize("end", ["killed", "upgraded"])
def test_the_next_server_starts_though_the_killed_one_cannot_die_yet(
    s3: S3, proxy: FaultyProxy, mounter: Mounter, state: Path, end: str
) -> None:
    bucket = f"half-dead-{end}"
    write_tree(s3.bucket(bucket), {"a": b"some" * 1000, "b": b"more" * 1000})
    # The cache is full of another file: the killed server still holds the locks of its directory.
    # Neither the watchdog nor the deadline is what ends the wait. Without any memory to spare, the
    # plan drops each file behind its readers.
    mount = mounter(
        f"s3://{bucket}", "--endpoint", proxy.endpoint, "--mode", "pagecache", "--watchdog", "100s",
        "--deadline", "100s", "--cache-size=6000B", "--page-cache", "0",
    )  # fmt: skip
    (mount.path / "b").read_bytes()
    mount.wait_until_cached("b")
    with open_plan([str(mount.path / "a")], label="half dead") as plan:

        def told(name: str) -> Any:
            return mount.stats()["plans"][0][name]

        plan.extend([0])
        wait_until(lambda: told("fetched") == 1, "pushed")
        plan.reached(1)
        wait_until(lambda: told("dropped") == 1, "dropped behind the cursor")
        proxy.script([Fault.STALL], wait_s=100)
        reader = subprocess.Popen(["cat", mount.path / "a"], stdout=subprocess.PIPE)
        wait_until(lambda: mount.stats()["fetching"] == 1, "a reader has locked its page")
        server = note(state)["server_pid"]
        plan.extend([0])
        wait_until(lambda: told("ahead") == 2, "planned again")
        plan.reached(2)
        wait_until(lambda: _waits_for_a_page(server), "the server waits for that page")
        if end == "killed":
            os.kill(server, signal.SIGKILL)
        else:
            assert penstock("upgrade", mount.path).returncode == 0
        wait_until(lambda: note(state)["server_pid"] not in (None, server), "taken over")
        proxy.calm()
        assert reader.communicate(timeout=30)[0] == b"some" * 1000
        assert mount.stats()["restarts"] == (1 if end == "killed" else 0)
        assert told("label") == "half dead"
        wait_until_gone(server)


def _waits_for_a_page(pid: int) -> bool:
    try:
        states = [path.read_text().rpartition(")")[2].split()[0]
                  for path in Path(f"/proc/{pid}/task").glob("*/stat")]  # fmt: skip
    except OSError:  # a thread has ended meanwhile
        return False
    return "D" in states
