"""A server with a plan is killed again and again: the plan goes on, and nothing is left behind."""

import os
import random
import threading
from pathlib import Path

import pytest

from penstock.integrations.plans import open_plan
from tests.support.kills import kill_again_and_again, lookers, note
from tests.support.mounts import Mounter
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

FILES = {f"{i % 5}/{i:03}": random.Random(i).randbytes(30_000 + 300 * i) for i in range(200)}
KILLS = 5


def kept_descriptors(pid: int) -> list[str]:
    """What a supervisor holds of plans."""
    links: list[str] = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(path))
        except OSError:
            continue
    return [link for link in links if "penstock-plan" in link]


@pytest.mark.slow
def test_a_plan_goes_on_through_many_kills_and_leaves_nothing(
    s3: S3, mounter: Mounter, state: Path
) -> None:
    write_tree(s3.bucket("plan-kills"), FILES)
    # A part of it fits into memory: pages are pushed, read, dropped and pushed again.
    mount = mounter(
        "s3://plan-kills", "--endpoint", s3.endpoint, "--mode", "pagecache",
        "--page-cache", "6MiB", "--cache-size", "6MiB",
    )  # fmt: skip
    names = list(FILES)
    stop = threading.Event()
    with open_plan([str(mount.path / name) for name in names], label="kills") as plan:

        def move() -> None:
            position, chance = 0, random.Random(1)
            while not stop.is_set():
                order = list(range(len(names)))
                chance.shuffle(order)
                plan.extend(order)
                for _ in order:
                    position += 1
                    plan.reached(position)
                    if stop.wait(0.002):
                        return

        mover = threading.Thread(target=move)
        mover.start()
        try:
            kill_again_and_again(mount.path, FILES, state, kills=KILLS, readers=4, seed=1)
        finally:
            stop.set()
            mover.join()
        assert [told["label"] for told in mount.stats()["plans"]] == ["kills"]
        assert plan.problems() is None
        supervisor = note(state)["pid"]
        assert len(kept_descriptors(supervisor)) == 1
        wait_until(lambda: len(lookers(mount.path)) <= 1, "lookers of killed servers are gone")
        (log,) = (state / "logs").glob("*.log")
        assert "Traceback" not in log.read_text()
    wait_until(lambda: kept_descriptors(supervisor) == [], "nothing is kept of it")
    mount.umount()
    wait_until(lambda: lookers(mount.path) == [], "the last one too")
