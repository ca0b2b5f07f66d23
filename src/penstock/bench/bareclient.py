"""The yardstick of cold reads: obstore's blocking GETs from plain threads, and nothing else.

It has no file system, no cache and no kernel to go through, so it shows what the object store
and the network give at the same concurrency. Like the readers it is a program of its own: its
threads and its CPU time stay apart from ours. The keys come in the environment.
"""

import json
import resource
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from queue import Empty, SimpleQueue

import obstore
from obstore.store import S3Store

from penstock.bench.datasets import Entry
from penstock.bench.readers import Epoch
from penstock.bench.s3server import S3Server
from penstock.bench.workspace import Workspace
from penstock.units import MIB

PART = "bare-client"


def get_epoch(
    workspace: Workspace,
    server: S3Server,
    bucket: str,
    entries: Sequence[Entry],
    *,
    readers: int,
    block_bytes: int = 8 * MIB,
    parallel: int = 4,
) -> Epoch:
    """GETs every object once: `readers` at a time, and each of the large ones by blocks.

    An object of more than one block is fetched as ranges, `parallel` of them at a time.
    """
    order = {
        "endpoint": server.endpoint,
        "bucket": bucket,
        "objects": [(entry.path, entry.size_bytes) for entry in entries],
        "readers": readers,
        "block_bytes": block_bytes,
        "parallel": parallel,
    }
    answer = workspace.run(
        PART,
        [sys.executable, "-m", "penstock.bench.bareclient"],
        workspace.environment(PART, server.aws_environment()),
        stdin=json.dumps(order).encode(),
    )
    return Epoch(**json.loads(answer))


class _Reader:
    """One reader: takes objects from the queue until it is empty."""

    def __init__(self, store: S3Store, block_bytes: int, parallel: int) -> None:
        self._store = store
        self._block_bytes = block_bytes
        self._parallel = parallel
        self._pool = ThreadPoolExecutor(parallel)

    def run(self, objects: "SimpleQueue[tuple[str, int]]", begin: threading.Barrier) -> int:
        # The threads exist before the clock starts, as they do in a mount that has listed the
        # bucket: none can pass until all are there.
        gathering = threading.Barrier(self._parallel)
        for waiting in [self._pool.submit(gathering.wait) for _ in range(self._parallel)]:
            waiting.result()
        begin.wait()
        total = 0
        while True:
            try:
                path, size = objects.get_nowait()
            except Empty:
                self._pool.shutdown()
                return total
            got = self._get(path, size)
            if got != size:
                raise OSError(f"{path}: {got} bytes of {size}")
            total += got

    def _get(self, path: str, size: int) -> int:
        if size <= self._block_bytes:
            return len(obstore.get(self._store, path).bytes())

        def get_block(start: int) -> int:
            end = min(start + self._block_bytes, size)
            return len(obstore.get_range(self._store, path, start=start, end=end))

        return sum(self._pool.map(get_block, range(0, size, self._block_bytes)))


def _main() -> None:
    order = json.load(sys.stdin)
    store = S3Store(
        order["bucket"],
        endpoint=order["endpoint"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    objects: SimpleQueue[tuple[str, int]] = SimpleQueue()
    for path, size in order["objects"]:
        objects.put((path, size))
    count = objects.qsize()
    readers = [
        _Reader(store, order["block_bytes"], order["parallel"]) for _ in range(order["readers"])
    ]
    begin = threading.Barrier(len(readers) + 1)
    with ThreadPoolExecutor(len(readers)) as pool:
        totals = [pool.submit(reader.run, objects, begin) for reader in readers]
        begin.wait()
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.monotonic()
        size_bytes = sum(total.result() for total in totals)
        seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps(asdict(Epoch(seconds, count, size_bytes, cpu_s))))


if __name__ == "__main__":
    _main()
