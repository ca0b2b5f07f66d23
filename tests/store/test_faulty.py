"""The store that fails on purpose does so as it is told, and can be made to do it again."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ObjectChanged, PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store import ObjectInfo
from penstock.store.connect import StoreOptions, open_store
from penstock.store.faulty import BAD_DAY, FAULTS, FaultyStore
from penstock.store.patience import PatientStore
from penstock.store.source import parse_source
from penstock.store.verified import VerifiedStore
from tests.conftest import write_tree
from tests.store.test_patience import Clock, Scripted

FILES = {f"{number:03}": bytes([number]) * 100 for number in range(50)}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_tree(tmp_path / "set", FILES)
    return f"file://{tmp_path}/set"


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


def test_its_seed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(Scripted(b"data"))
    assert f"seed {store.seed}" in caplog.text


def test_a_fault_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="flood"):
        FaultyStore(Scripted(b"data"), {"flood": 1.0})


def test_rates_can_be_changed_while_it_runs() -> None:
    store = FaultyStore(Scripted(b"data"), {"changed": 1.0}, seed=1)
    with pytest.raises(ObjectChanged):
        store.get("key", "v", 0, 4, 4)
    store.rates = {}
    assert store.get("key", "v", 0, 4, 4) == b"data"
    assert store.injected == Counter(changed=1)


class Paged(Scripted):
    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        for key, data in FILES.items():
            if key > after:
                yield [ObjectInfo(key, len(data), 0, "v")]


@pytest.mark.parametrize("seed", range(5))
def test_on_a_bad_day_every_listing_and_every_byte_still_comes(seed: int) -> None:
    faulty = FaultyStore(Paged(b"data"), BAD_DAY, seed=seed, sleep=lambda _: None)
    counters = Counters()
    patient = PatientStore(faulty, counters, deadline_s=60, time=Clock().time)
    assert [info.key for page in patient.list_all("") for info in page] == list(FILES)
    for key in FILES:
        assert patient.get(key, "v", 0, 4, 4) == b"data"
    failures = sum(faulty.injected.values()) - faulty.injected["delay"]
    assert counters.total("store_retries") == failures > 0


@pytest.mark.parametrize("seed", range(5))
def test_no_flipped_bit_passes_the_comparison_with_the_etag(seed: int) -> None:
    import hashlib

    faulty = FaultyStore(Scripted(b"data"), {"wrong_bytes": 0.3}, seed=seed)
    counters = Counters()
    version = hashlib.md5(b"data", usedforsecurity=False).hexdigest()
    patient = PatientStore(
        VerifiedStore(faulty, counters), counters, deadline_s=60, time=Clock().time
    )
    for number in range(100):
        assert patient.get(f"{number}", version, 0, 4, 4) == b"data"
    assert counters.total("store_mismatches") == faulty.injected["wrong_bytes"] > 0


def test_it_wraps_a_real_store(folder: str) -> None:
    faulty = FaultyStore(
        open_store(parse_source(folder), StoreOptions(), Counters()), {"reset": 1.0}, seed=1
    )
    with pytest.raises(StoreError) as raised:
        list(faulty.list_all(""))
    assert raised.value.kind == "reset"
