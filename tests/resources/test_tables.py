"""What `get` and `describe` print, to the letter of kubectl's output for Fluid."""

import re
import time

import pytest

from penstock.resources.conditions import Condition, amount, share, stamp, with_conditions
from penstock.resources.describing import describe
from penstock.resources.state import Event
from penstock.resources.tables import age, aligned, table


def dataset(**status: object) -> dict[str, object]:
    return {
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "imagenet", "namespace": "default",
                     "creationTimestamp": stamp(time.time() - 5)},
        "spec": {"mounts": [{"mountPoint": "s3://b/p", "options": {"fs.oss.endpoint": "e"}}]},
        "status": status,
    }  # fmt: skip


def test_a_data_set_has_the_columns_of_the_seed() -> None:
    states = {"cached": "0.00B", "cacheCapacity": "648.00GiB", "cachedPercentage": "0.0%"}
    shown = dataset(ufsTotal="143.67GiB", phase="Bound", cacheStates=states)
    title, row = aligned(table([shown], "Dataset", wide=False, namespaces=False))
    assert re.split(r"\s{2,}", title) == [
        "NAME", "UFS TOTAL SIZE", "CACHED", "CACHE CAPACITY", "CACHED PERCENTAGE", "PHASE", "AGE",
    ]  # fmt: skip
    assert row.split() == ["imagenet", "143.67GiB", "0.00B", "648.00GiB", "0.0%", "Bound", "5s"]
    # Each value stands under its title.
    assert row.index("648.00GiB") == title.index("CACHE CAPACITY")


def test_a_runtime_has_the_columns_of_the_seed() -> None:
    shown = {
        **dataset(),
        "kind": "JindoRuntime",
        "status": {"masterPhase": "Ready", "workerPhase": "Ready", "fusePhase": "Ready"},
    }
    title, row = aligned(table([shown], "JindoRuntime", wide=False, namespaces=False))
    assert re.split(r"\s{2,}", title) == ["NAME", "MASTER PHASE", "WORKER PHASE", "FUSE PHASE",
                                          "AGE"]  # fmt: skip
    assert row.split()[:4] == ["imagenet", "Ready", "Ready", "Ready"]


def test_wide_adds_the_rest_and_all_namespaces_their_names() -> None:
    title, _ = table([dataset()], "Dataset", wide=True, namespaces=True)
    assert title[0] == "NAMESPACE"
    assert {"HCFS URL", "TOTAL FILES", "CACHE HIT RATIO", "MOUNT PATH"} <= set(title)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (5, "5s"), (119, "119s"), (285, "4m45s"), (300, "5m"), (3120, "52m"),
     (10740, "179m"), (4 * 3600, "4h"), (7 * 3600 + 720, "7h12m"), (30 * 3600, "30h"),
     (3 * 86400 + 4 * 3600, "3d4h"), (52 * 86400, "52d")],
)  # fmt: skip
def test_ages_are_as_short_as_kubectl_s(seconds: int, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.00B"), (1023, "1023.00B"), (154262896640, "143.67GiB")]
)
def test_amounts_are_printed_as_fluid_does(size: int, text: str) -> None:
    assert amount(size) == text


def test_nothing_is_all_cached_before_it_is() -> None:
    assert share(10**12 - 1, 10**12) == "99.9%"
    assert share(10**12, 10**12) == "100.0%"
    assert share(0, 5) == "0.0%"


def test_a_condition_that_still_holds_keeps_the_time_since_when() -> None:
    ready = Condition("Ready", True, "DatasetReady", "ready")
    first = with_conditions([], [ready], 1000.0)
    again = with_conditions(first, [ready._replace(message="still")], 2000.0)
    assert again[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert again[0]["lastUpdateTime"] == stamp(2000.0)
    other = with_conditions(again, [ready._replace(holds=False)], 3000.0)
    assert other[0]["lastTransitionTime"] == stamp(3000.0)


def test_describe_reads_as_in_the_seed() -> None:
    shown = dataset(
        phase="Bound", ufsTotal="143.7GiB",
        runtimes=[{"name": "imagenet", "namespace": "default", "category": "Accelerate",
                   "type": "alluxio"}],
        cacheStates={"cached": "0B", "cacheCapacity": "600GiB", "cachedPercentage": "0%"},
    )  # fmt: skip
    text = describe(shown, [])
    for expected in (
        r"^Name: +imagenet$", r"^Namespace: +default$", r"^Labels: +<none>$",
        r"^API Version: +data\.fluid\.io/v1alpha1$", r"^Kind: +Dataset$", r"^Metadata:$",
        r"^Spec:$", r"^Status:$", r"^  Cache States:$", r"^    Cache Capacity: +600GiB$",
        r"^    Cached Percentage: +0%$", r"^  Phase: +Bound$", r"^  Runtimes:$",
        r"^    Category: +Accelerate$", r"^    Type: +alluxio$", r"^  Ufs Total: +143\.7GiB$",
        r"^ +fs\.oss\.endpoint: +e$", r"^Events: +<none>$",
    ):  # fmt: skip
        assert re.search(expected, text, re.MULTILINE), (expected, text)
    event = Event("Warning", "AccessDenied", "wrong keys", time.time() - 60, time.time(), 4)
    assert "Warning   AccessDenied   0s (x4 over 60s)   wrong keys" in describe(shown, [event])
