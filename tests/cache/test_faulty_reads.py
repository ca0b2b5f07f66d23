"""The cache over a store that fails at random: right bytes or a told error, and nothing stays."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cache.build import build_cache
from penstock.cache.identity import identify
from penstock.cache.tier import TierSpec
from penstock.errors import ObjectChanged
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
from penstock.store.faulty import BAD_DAY, FaultyStore
from penstock.store.retry import RetryingStore, Timing
from penstock.store.source import parse_source
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

BLOCK = 128 * 1024
FILES = {f"{n}": random.Random(n).randbytes(n * 20_011 % (5 * BLOCK) + 1) for n in range(60)}


@pytest.mark.parametrize("seed", range(2))
def test_eight_readers_of_a_failing_store_get_right_bytes_or_an_error(
    tmp_path: Path, seed: int
) -> None:
    write_tree(tmp_path / "set", FILES)
    counters = Counters()
    real = open_store(parse_source(f"file://{tmp_path}/set"), StoreOptions(), counters)
    versions = {info.key: info.version for page in real.list_all("") for info in page}
    rates = {**BAD_DAY, "changed": 0.01}
    faulty = FaultyStore(real, rates, seed=seed, delay_s=0.002)
    patient = RetryingStore(faulty, counters, deadline_s=60, time=Timing(sleep=lambda _: None))
    cache = build_cache(
        [TierSpec("MEM", (tmp_path / "cache",), 10 * BLOCK)],
        policy="lru",
        block_bytes=BLOCK,
        buffer_bytes=6 * BLOCK,
        large_threads=4,
        threads=4,
        counters=counters,
    )

    def read_many(reader: int) -> int:
        draw, reported = random.Random(seed * 100 + reader), 0
        for _ in range(60):
            key = draw.choice(list(FILES))
            data = FILES[key]
            offset = draw.randrange(len(data))
            length = draw.randrange(1, 3 * BLOCK)

            def get(start: int, length: int, _progress: object = None, key: str = key) -> bytes:
                body = patient.get(key, versions[key], start, length, len(FILES[key]))
                return bytes(memoryview(body))

            obj = identify("file://set", key, versions[key], len(data), BLOCK)
            try:
                parts = cache.read_now(obj, offset, length)
                if parts is None:
                    parts = cache.read(obj, get, offset, length)
            except ObjectChanged:
                reported += 1
                continue
            assert b"".join(parts) == data[offset : offset + length]
        return reported

    with ThreadPoolExecutor(8) as readers:
        reported = sum(readers.map(read_many, range(8)))
    wait_until(lambda: not cache.fetching)
    cache.close()
    assert min(reported, faulty.injected["changed"]) > 0
    failures = sum(faulty.injected.values()) - faulty.injected["delay"] - faulty.injected["changed"]
    assert counters.total("store_retries") == failures > 0
    cache.drop_idle()
    assert (cache.fetching, cache.buffered_bytes) == (0, 0)
