"""The store that is far away: the same bytes, counted, never sooner and never faster than said."""

import contextlib
import http.client
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from obstore.store import S3Store

from penstock.bench.dataset import SMALL_BYTES, Dataset, Entry
from penstock.bench.s3server import FarServer, S3Server, far_s3
from penstock.bench.workspace import Workspace
from tests.support.waiting import wait_until

LATENCY_S = 0.03
BYTES_PER_S = 20e6


@pytest.fixture(scope="module")
def far(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarServer]:
    with (
        Workspace(tmp_path_factory.mktemp("far")) as workspace,
        far_s3(workspace, server, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def store(far: FarServer, small: Dataset) -> S3Store:
    return open_store(far.server, small)


def open_store(server: S3Server, small: Dataset) -> S3Store:
    return S3Store(
        small.name,
        endpoint=server.endpoint,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
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


def test_only_gets_of_objects_are_counted_as_gets(
    far: FarServer, store: S3Store, small: Dataset
) -> None:
    before = far.counters()
    listed = [meta["path"] for page in obstore.list(store) for meta in page]
    assert len(listed) == len(small.entries)
    obstore.head(store, listed[0])
    counted = far.counters().since(before)
    assert (counted.gets, counted.get_bytes, counted.other_requests) == (0, 0, 2)
    # Some clients add a query to a GET of an object.
    connection = http.client.HTTPConnection("127.0.0.1", far.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", f"/{small.name}/{listed[0]}?x-id=GetObject")
        assert connection.getresponse().status == 403  # it is not signed
    assert far.counters().since(before).gets == 1


def test_what_is_written_through_it_arrives(
    server: S3Server, store: S3Store, small: Dataset
) -> None:
    content = bytes(range(256)) * 1000
    near = open_store(server, small)
    obstore.put(store, "new/object.bin", content, use_multipart=False)
    assert bytes(obstore.get(near, "new/object.bin").bytes()) == content
    obstore.delete(store, "new/object.bin")
    with pytest.raises(FileNotFoundError):
        obstore.head(near, "new/object.bin")


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

    def get(entry: Entry) -> int:
        return len(obstore.get(store, entry.path).bytes())

    start = time.monotonic()
    with ThreadPoolExecutor(len(small.entries)) as pool:
        assert sum(pool.map(get, small.entries)) == small.size_bytes
    taken_s = time.monotonic() - start
    assert far.counters().since(before).gets == len(small.entries)
    assert taken_s >= LATENCY_S + small.size_bytes / BYTES_PER_S - 0.005


def test_several_processes_count_together_and_end_together(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    with far_s3(workspace, server, latency_s=0.0, bytes_per_s=math.inf, processes=3) as far:
        store = open_store(far.server, small)
        # Each GET has a connection of its own, so that all three get some.
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda entry: obstore.get(store, entry.path), small.entries[:12]))
        assert far.counters().gets == 12
        assert len(workspace.processes("s3-server")) == 3
    wait_until(lambda: not workspace.processes("s3-server"), "three processes have ended")


def test_what_is_not_measured_goes_by_at_once_and_is_counted_all_the_same(
    workspace: Workspace, server: S3Server, small: Dataset
) -> None:
    # A day for this object: only a line that is free gives it in the time of a test.
    with far_s3(workspace, server, latency_s=0, bytes_per_s=1000 / 864) as far, far.at_once():
        data = obstore.get(open_store(far.server, small), small.entries[0].path).bytes()
        assert len(data) == SMALL_BYTES
        assert far.counters().gets == 1
