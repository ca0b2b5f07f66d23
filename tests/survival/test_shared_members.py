"""Members of the shared tier that fail while readers of a mount without a cache are at work."""

import random
from collections.abc import Callable, Iterator

import pytest

from penstock.bench.shared.servers import spoil
from tests.support.kills import reading
from tests.support.memcached import Memcached, address_of, memcached
from tests.support.mounts import Mount, Mounter, warm
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

# Of one piece, of several pieces, and of several blocks.
FILES = {
    **{f"s{i:02}": random.Random(i).randbytes(110 * 1024) for i in range(40)},
    **{f"m{i}": random.Random(i).randbytes(900 * 1024) for i in range(6)},
    "large": random.Random(99).randbytes(3 * 1024 * 1024 + 1),
}
READERS = 6


@pytest.fixture(scope="module")
def bucket(_s3_server: S3) -> ObjectPath:
    made = _s3_server.bucket("shared-members")
    write_tree(made, FILES)
    return made


@pytest.fixture
def members() -> Iterator[list[Memcached]]:
    with memcached("-m", "64") as one, memcached("-m", "64") as two:
        yield [one, two]


@pytest.fixture
def mount(mounter: Mounter, s3: S3, bucket: ObjectPath, members: list[Memcached]) -> Mount:
    at = (bucket.source, "--endpoint", s3.endpoint, "--mode", "pagecache", "--no-cache")
    small = ("--prefetch", "0", "--block-size", "1MiB")
    return mounter(*at, *small, "--shared", address_of(*members))


def restart(member: Memcached) -> None:
    member.kill()
    member.start()


def restart_with(*options: str) -> Callable[[Memcached], None]:
    def act(member: Memcached) -> None:
        member.kill()
        member.options = options
        member.start()

    return act


def spoil_all(member: Memcached) -> None:
    assert spoil("127.0.0.1", member.port, seed=member.port) > 0


def nothing(member: Memcached) -> None:
    return None


HARMS: dict[str, tuple[Callable[[Memcached], object], Callable[[Memcached], object]]] = {
    "killed": (Memcached.kill, Memcached.start),
    "stopped": (Memcached.pause, Memcached.go_on),
    "restarted": (restart, nothing),
    "filled up": (restart_with("-m", "2"), restart),
    "refusing": (restart_with("-m", "2", "-M"), restart),
    "spoiled": (spoil_all, spoil_all),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS)
def test_no_reader_sees_an_error_or_a_wrong_byte(
    mount: Mount, members: list[Memcached], harm: str
) -> None:
    warm(mount)
    wait_until(lambda: filled(mount) >= sum(map(len, FILES.values())), "the members are filled")
    do_harm, mend = HARMS[harm]
    # `reading` fails if a reader sees an error or a wrong byte.
    with reading(mount.path, FILES, readers=READERS, seed=len(harm)) as readers:
        readers.wait_for_more()
        for member in members:
            do_harm(member)
            readers.wait_for_more()
            mend(member)
            readers.wait_for_more()
    counts = mount.stats()["shared"]["members"]
    assert mount.stats()["errors"] == 0
    assert all(one["hits"] > 0 for one in counts)


def filled(mount: Mount) -> int:
    return sum(one["filled_bytes"] for one in mount.stats()["shared"]["members"])
