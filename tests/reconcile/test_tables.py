"""What `get` and `describe` print, to the letter of kubectl's output for Fluid."""

import re
import time

from penstock.api.tables import age, describe, table
from penstock.reconcile.conditions import Condition, amount, share, stamp, with_conditions
from penstock.reconcile.snapshot import Event


def test_ages_amounts_and_percentages_print_as_in_kubectl_and_fluid() -> None:
    ages = {
        0: "0s",
        119: "119s",
        285: "4m45s",
        300: "5m",
        10740: "179m",
        25920: "7h12m",
        108000: "30h",
        273600: "3d4h",
        52 * 86400: "52d",
    }
    assert {seconds: age(seconds) for seconds in ages} == ages
    assert [amount(size) for size in (0, 1023, 154262896640)] == ["0.00B", "1023.00B", "143.67GiB"]
    # Nothing is all cached before it is.
    whole = 10**12
    assert [share(size, whole) for size in (0, whole - 1, whole)] == ["0.0%", "99.9%", "100.0%"]


def test_a_condition_that_still_holds_keeps_its_transition_time() -> None:
    ready = Condition("Ready", True, "DatasetReady", "ready")
    first = with_conditions([], [ready], 1000.0)
    again = with_conditions(first, [ready._replace(message="still")], 2000.0)
    assert again[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert again[0]["lastUpdateTime"] == stamp(2000.0)
    other = with_conditions(again, [ready._replace(holds=False)], 3000.0)
    assert other[0]["lastTransitionTime"] == stamp(3000.0)


def test_describe_shows_fields_by_title_and_counts_events() -> None:
    shown: dict[str, object] = {
        "apiVersion": "data.fluid.io/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": "imagenet", "namespace": "default", "creationTimestamp": stamp(0)},
        "spec": {"mounts": [{"mountPoint": "s3://b/p", "options": {"fs.oss.endpoint": "e"}}]},
        "status": {"ufsTotal": "143.7GiB", "cacheStates": {"cacheCapacity": "600GiB"}},
    }
    title, _ = table([shown], "Dataset", wide=True, namespaces=True)
    assert title[0] == "NAMESPACE"
    assert {"HCFS URL", "TOTAL FILES", "CACHE HIT RATIO", "MOUNT PATH"} <= set(title)
    text = describe(shown, [])
    for shown_as in (r"Labels: +<none>", r" +Cache Capacity: +600GiB", r" +fs\.oss\.endpoint: +e"):
        assert re.search(f"^{shown_as}$", text, re.MULTILINE), text
    first_s, last_s = (time.time() - days * 86400 for days in (60.5, 52.5))
    event = Event("Warning", "AccessDenied", "wrong keys", first_s, last_s, 4)
    assert "Warning   AccessDenied   52d (x4 over 60d)   wrong keys" in describe(shown, [event])
