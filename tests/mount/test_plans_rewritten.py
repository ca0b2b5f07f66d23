"""Objects that are rewritten while a plan pushes them: a read is one version, never two."""

import random
import threading

from penstock.integrations.plans import open_plan
from tests.support.mounts import Mounter
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

NAMES = [f"{n:02}" for n in range(30)]


def content(number: int, version: int) -> bytes:
    """Of another size and another byte each time."""
    return bytes([version % 256]) * (10_000 + 7_000 * ((number + version) % 9))


def write_version(bucket: ObjectPath, version: int) -> None:
    write_tree(bucket, {name: content(number, version) for number, name in enumerate(NAMES)})


def test_pushed_pages_of_two_versions_never_meet(s3: S3, mounter: Mounter) -> None:
    bucket = s3.bucket("rewritten")
    write_version(bucket, 0)
    mount = mounter(
        "s3://rewritten", "--endpoint", s3.endpoint, "--mode", "pagecache", "--page-cache", "1MiB"
    )
    stop, reads = threading.Event(), [0]
    wrong: list[tuple[str, int]] = []

    def read() -> None:
        while not stop.is_set():
            number = random.randrange(len(NAMES))
            try:
                data = (mount.path / NAMES[number]).read_bytes()
            except OSError:
                continue  # it was rewritten, and the listing is not there yet: ESTALE
            reads[0] += 1
            if not data or data != content(number, data[0]):
                wrong.append((NAMES[number], len(data)))

    readers = [threading.Thread(target=read) for _ in range(3)]
    with open_plan([str(mount.path / name) for name in NAMES]) as plan:
        for reader in readers:
            reader.start()
        try:
            for version in range(1, 6):
                plan.extend(range(len(NAMES)))
                write_version(bucket, version)
                mount.refresh()
                plan.reached(version * len(NAMES))
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        assert wrong == []
        assert reads[0] > 0
        plan.extend(range(len(NAMES)))
        wait_until(lambda: mount.stats()["plans"][0]["ahead"] == 6 * len(NAMES), "looked at")
        for number, name in enumerate(NAMES):
            assert (mount.path / name).read_bytes() == content(number, 5)
        assert mount.stats()["plans"][0]["missing"] == 0
