"""The store that is far away: the same bytes, counted, never sooner and never faster than said."""

import contextlib
import http.client
import math
import threading
import time
from collections.abc import Iterator

import obstore
import pytest
from obstore.store import S3Store

from penstock.bench.dataset import SMALL_BYTES, Dataset
from penstock.bench.s3server import REGION, FarServer, S3Server, far_s3
from penstock.bench.workspace import Workspace, wait_until

LATENCY_S = 0.03
BYTES_PER_S = 20e6


@pytest.fixture
def far(workspace: Workspace, server: S3Server) -> Iterator[FarServer]:
    with far_s3(workspace, server, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as opened:
        yield opened


@pytest.fixture
def store(far: FarServer) -> S3Store:
    return _store(far)


def _store(far: FarServer) -> S3Store:
    return S3Store(
        "small",
        endpoint=far.server.endpoint,
        region=REGION,
        access_key_id=far.server.access_key,
        secret_access_key=far.server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def test_every_object_comes_whole_and_is_counted_once(
    far: FarServer, store: S3Store, small: Dataset
) -> None:
    before = far.counters()
    for entry in small.entries[:5]:
        data = bytes(obstore.get(store, entry.path).bytes())
        assert data == (small.root / entry.path).read_bytes()
    counted = far.counters().since(before)
    assert (counted.gets, counted.get_bytes, counted.other_requests) == (5, 5 * SMALL_BYTES, 0)


def test_a_range_is_partial_content_and_counts_its_own_bytes(
    far: FarServer, store: S3Store, small: Dataset
) -> None:
    before = far.counters()
    whole = (small.root / small.entries[0].path).read_bytes()
    got = obstore.get_range(store, small.entries[0].path, start=5000, end=70_001)
    assert bytes(got) == whole[5000:70_001]
    counted = far.counters().since(before)
    assert (counted.gets, counted.get_bytes) == (1, 65_001)


def test_listings_and_heads_are_not_counted_as_gets(
    far: FarServer, store: S3Store, small: Dataset
) -> None:
    before = far.counters()
    listed = [meta["path"] for page in obstore.list(store) for meta in page]
    assert len(listed) == len(small.entries)
    obstore.head(store, listed[0])
    counted = far.counters().since(before)
    assert (counted.gets, counted.get_bytes, counted.other_requests) == (0, 0, 2)


def test_a_get_with_a_query_is_a_get(far: FarServer, small: Dataset) -> None:
    before = far.counters()
    connection = http.client.HTTPConnection("127.0.0.1", far.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", f"/small/{small.entries[0].path}?x-id=GetObject")
        connection.getresponse().read()
    assert far.counters().since(before).gets == 1


def test_what_is_written_through_it_arrives(store: S3Store, small: Dataset) -> None:
    content = bytes(range(256)) * 1000
    obstore.put(store, "new/object.bin", content, use_multipart=False)
    assert (small.root / "new" / "object.bin").read_bytes() == content
    obstore.delete(store, "new/object.bin")
    assert not (small.root / "new" / "object.bin").exists()


def test_an_answer_takes_the_latency_and_the_time_of_its_bytes(
    store: S3Store, small: Dataset
) -> None:
    start = time.monotonic()
    obstore.head(store, small.entries[0].path)
    assert time.monotonic() - start >= LATENCY_S
    start = time.monotonic()
    obstore.get(store, small.entries[0].path).bytes()
    # 5 ms may be made up for: what a late wake-up of its thread took.
    assert time.monotonic() - start >= LATENCY_S + SMALL_BYTES / BYTES_PER_S - 0.005


def test_bodies_at_once_share_one_bandwidth(far: FarServer, store: S3Store, small: Dataset) -> None:
    before = far.counters()

    def get(path: str) -> None:
        obstore.get(store, path).bytes()

    readers = [threading.Thread(target=get, args=(entry.path,)) for entry in small.entries]
    start = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    taken_s = time.monotonic() - start
    assert far.counters().since(before).gets == len(small.entries)
    assert taken_s >= LATENCY_S + small.size_bytes / BYTES_PER_S - 0.005


def test_several_processes_count_together_and_end_together(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    with far_s3(workspace, server, latency_s=0.0, bytes_per_s=math.inf, processes=3) as far:
        store = _store(far)
        # Each GET has a connection of its own, so that all three get some.
        threads = [
            threading.Thread(target=obstore.get, args=(store, entry.path))
            for entry in small.entries[:12]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert far.counters().gets == 12
        before = workspace.processes("s3-server")
    wait_until(
        lambda: len(workspace.processes("s3-server")) == len(before) - 3,
        timeout_s=10, what="the end of three processes",
    )  # fmt: skip


def test_what_is_not_measured_goes_by_at_once_and_is_counted_all_the_same(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    # A day for this object: only a line that is free gives it in the time of a test.
    with far_s3(workspace, server, latency_s=0, bytes_per_s=1000 / 864) as far, far.at_once():
        data = obstore.get(_store(far), small.entries[0].path).bytes()
        assert len(data) == SMALL_BYTES
        assert far.counters().gets == 1
