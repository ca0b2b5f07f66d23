"""The store that fails on purpose does so as it is told, and can be made to do it again."""

import hashlib
from collections.abc import Iterator

import pytest

from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.store import ObjectInfo
from penstock.store.faulty import BAD_DAY, FAULTS, FaultyStore
from penstock.store.patience import PatientStore
from penstock.store.verified import VerifiedStore
from tests.support.scripted_store import Clock, Scripted

FILES = {f"{number:03}": bytes([number]) * 100 for number in range(50)}


def ask(store: FaultyStore, times: int) -> list[str]:
    seen: list[str] = []
    for _ in range(times):
        try:
            seen.append(str(bytes(memoryview(store.get("key", "v", 0, 4, 4)))))
        except PenstockError as error:
            seen.append(str(error))
    return seen


def test_the_same_seed_gives_the_same_faults() -> None:
    rates = dict.fromkeys(FAULTS, 0.07)
    first, again, other = (
        FaultyStore(Scripted(b"data"), rates, seed=seed, sleep=lambda _: None) for seed in (1, 1, 2)
    )
    assert ask(first, 500) == ask(again, 500)
    assert ask(first, 500) != ask(other, 500)
    assert set(first.injected) == set(FAULTS)


class Paged(Scripted):
    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        for key, data in FILES.items():
            if key > after:
                yield [ObjectInfo(key, len(data), 0, "v")]


@pytest.mark.parametrize("seed", range(2))
def test_on_a_bad_day_every_listing_and_every_byte_still_comes(seed: int) -> None:
    faulty = FaultyStore(Paged(b"data"), BAD_DAY, seed=seed, sleep=lambda _: None)
    counters = Counters()
    patient = PatientStore(faulty, counters, deadline_s=60, time=Clock().time)
    assert [info.key for page in patient.list_all("") for info in page] == list(FILES)
    for key in FILES:
        assert patient.get(key, "v", 0, 4, 4) == b"data"
    failures = sum(faulty.injected.values()) - faulty.injected["delay"]
    assert counters.total("store_retries") == failures > 0


def test_no_flipped_bit_passes_the_comparison_with_the_etag() -> None:
    faulty = FaultyStore(Scripted(b"data"), {"wrong_bytes": 0.3}, seed=1)
    counters = Counters()
    version = hashlib.md5(b"data", usedforsecurity=False).hexdigest()
    patient = PatientStore(
        VerifiedStore(faulty, counters), counters, deadline_s=60, time=Clock().time
    )
    for number in range(100):
        assert patient.get(f"{number}", version, 0, 4, 4) == b"data"
    assert counters.total("store_mismatches") == faulty.injected["wrong_bytes"] > 0
