"""Mounts that share a tier: what one has fetched, the others do not fetch again."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.support.memcached import Memcached, address_of, memcached
from tests.support.metrics import parse
from tests.support.mounts import Mount, Mounter, fail, succeed, warm
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_raw, write_tree
from tests.support.waiting import wait_until

SMALL_BYTES = 60 * 60 * 1024
FILES = {f"{i:03}.jpg": random.Random(i).randbytes(60 * 1024) for i in range(60)}
LARGE = random.Random(1).randbytes(5 * 1024 * 1024 + 12345)
LARGE_BLOCKS = 6
NODES = 4


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket / "small", FILES)
    write_tree(empty_bucket / "large", {"large.bin": LARGE})
    return empty_bucket


@pytest.fixture
def members() -> Iterator[list[Memcached]]:
    with memcached("-m", "128") as one, memcached("-m", "128") as two:
        yield [one, two]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("a secret that all nodes have\n")
    return file


Node = Callable[..., Mount]


@pytest.fixture
def node(mounter: Mounter, s3: S3, bucket: ObjectPath, tmp_path: Path) -> Node:
    """node(prefix, *options) is a mount with a cache of its own, as on a machine of its own."""
    numbers = count()

    def mount(prefix: str, *options: str | Path) -> Mount:
        cache = ("--cache-dir", tmp_path / f"cache{next(numbers)}")
        at = ((bucket / prefix).source, "--endpoint", s3.endpoint, "--mode", "pagecache")
        return mounter(*at, *(() if "--no-cache" in options else cache), *options)

    return mount


def read_all(mount: Mount, seed: int) -> None:
    names = list(FILES)
    random.Random(seed).shuffle(names)
    for name in names:
        assert read_raw(mount.path / name) == FILES[name]


def gets(mounts: list[Mount]) -> int:
    return sum(mount.stats()["store_requests_by_verb"].get("get", 0) for mount in mounts)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_second_node_fetches_nothing_from_the_bucket(
    node: Node, members: list[Memcached], key: Path, sealed: bool
) -> None:
    options = ["--shared", address_of(*members), "--prefetch", "0"]
    options += ["--shared-key", str(key)] if sealed else []
    one, two = (node("small", *options) for _ in range(2))
    read_all(one, 1)
    wait_until(lambda: filled(one) == SMALL_BYTES)
    read_all(two, 2)
    assert (gets([one]), gets([two])) == (len(FILES), 0)
    stats = two.stats()
    assert stats["hit_bytes"]["SHARED"] == SMALL_BYTES
    assert stats["cached_bytes"] == SMALL_BYTES  # kept locally as well
    metrics = parse(succeed("stats", two.path, "--prometheus"))
    assert metrics["hit_bytes_total SHARED"] == SMALL_BYTES
    assert sum(metrics[f"shared_hits_total {one.address}"] for one in members) == len(FILES)
    assert [metrics[f"shared_member_out {one.address}"] for one in members] == [0] * len(members)


def filled(mount: Mount) -> int:
    return sum(one["filled_bytes"] for one in mount.stats()["shared"]["members"])


def test_four_nodes_that_read_at_once_fetch_each_file_once(
    node: Node, members: list[Memcached]
) -> None:
    options = ["--shared", address_of(*members), "--prefetch", "0"]
    mounts = [node("small", *options) for _ in range(NODES)]
    with ThreadPoolExecutor(2 * NODES) as readers:
        for _ in readers.map(read_all, mounts * 2, range(2 * NODES)):
            pass
    assert gets(mounts) == len(FILES)


def test_four_warm_ups_at_once_share_the_work(node: Node, members: list[Memcached]) -> None:
    options = ["--shared", address_of(*members)]
    mounts = [node("small", *options) for _ in range(NODES)]
    with ThreadPoolExecutor(NODES) as nodes:
        answers = list(nodes.map(warm, mounts))
    assert gets(mounts) == len(FILES)
    assert sum(answer["fetched_files"] for answer in answers) == len(FILES)
    assert all(answer["cached_files"] == len(FILES) for answer in answers)


def test_blocks_of_a_large_file_are_shared(node: Node, members: list[Memcached]) -> None:
    options = ["--shared", address_of(*members), "--block-size", "1MiB"]
    one, two = (node("large", *options) for _ in range(2))
    assert (one.path / "large.bin").read_bytes() == LARGE
    wait_until(lambda: filled(one) == len(LARGE))
    assert (two.path / "large.bin").read_bytes() == LARGE
    assert (gets([one]), gets([two])) == (LARGE_BLOCKS, 0)


def test_losing_every_member_costs_no_error(node: Node, members: list[Memcached]) -> None:
    options = ["--shared", address_of(*members), "--no-cache", "--prefetch", "0"]
    one = node("small", *options)
    names = iter(FILES)
    for harm in (Memcached.pause, Memcached.kill):
        for member in members:
            name = next(names)
            assert read_raw(one.path / name) == FILES[name]
            harm(member)
    read_all(one, 3)
    stats = one.stats()
    assert stats["errors"] == 0
    assert all(member["out"] for member in stats["shared"]["members"])


def test_a_warm_up_fills_the_shared_tier_of_a_mount_without_a_cache(
    node: Node, members: list[Memcached]
) -> None:
    options = ["--shared", address_of(*members), "--no-cache"]
    one, two = (node("small", *options) for _ in range(2))
    warm(one)
    wait_until(lambda: filled(one) == SMALL_BYTES)
    warm(two)
    read_all(two, 5)
    assert (gets([one]), gets([two])) == (len(FILES), 0)


def test_a_bad_address_or_key_is_a_mistake_of_the_user(
    s3: S3, bucket: ObjectPath, tmp_path: Path
) -> None:
    at = ("mount", bucket.source, tmp_path, "-b", "--endpoint", s3.endpoint, "--no-cache")
    assert "redis://h" in fail(*at, "--shared", "redis://h")
    assert "no-key" in fail(*at, "--shared", "memcached://h", "--shared-key", tmp_path / "no-key")


def test_a_key_file_that_is_gone_costs_the_shared_tier_and_not_the_mount(
    node: Node, members: list[Memcached], key: Path
) -> None:
    one = node("small", "--shared", address_of(*members), "--shared-key", key, "--prefetch", "0")
    key.unlink()
    before = one.stats()
    os.kill(before["pid"], signal.SIGKILL)
    read_all(one, 1)
    after = one.stats()
    assert after["pid"] != before["pid"]
    assert after["shared"] is None


def test_what_is_cached_counts_what_the_shared_tier_holds(
    node: Node, members: list[Memcached]
) -> None:
    one = node("small", "--shared", address_of(*members), "--prefetch", "0")
    two = node("small", "--shared", address_of(*members), "--no-cache")
    names = list(FILES)[:15]
    for name in names:
        assert read_raw(one.path / name) == FILES[name]
    wait_until(lambda: filled(one) == SMALL_BYTES // 4)
    stats = two.stats()
    assert stats["cached_bytes"] == stats["shared"]["cached_bytes"] == SMALL_BYTES // 4
    assert stats["capacity_bytes"] == 2 * 128 * 1024 * 1024


def test_a_warm_up_is_complete_if_the_shared_tier_holds_what_found_no_room_here(
    node: Node, members: list[Memcached]
) -> None:
    at = ("--shared", address_of(*members))
    small = (*at, "--cache-size", "1MiB")
    one, two = node("small", *small), node("small", *at, "--no-cache")
    answer = warm(one)
    assert (answer["cached_files"], answer["cached_bytes"]) == (len(FILES), SMALL_BYTES)
    here, shared = answer["tiers"]
    assert here["bytes"] < SMALL_BYTES
    assert (shared["name"], here["bytes"] + shared["bytes"]) == ("SHARED", SMALL_BYTES)
    answer = warm(two, "--check")
    assert [tier["bytes"] for tier in answer["tiers"]] == [SMALL_BYTES]
    for member in members:
        member.kill()
    assert warm(one, "--check")["cached_bytes"] == here["bytes"]
