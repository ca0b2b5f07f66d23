"""The Grafana board, the alerts and the guide: what they ask for exists in a real Prometheus."""

import json
import math
import os
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from penstock.bench.workspace import free_port
from penstock.metrics import METRICS, Kind
from tests.support.kernelcaches import drop_pages
from tests.support.metrics import fetch
from tests.support.mounts import Mount, Mounter, succeed
from tests.support.processes import running
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
BOARD = json.loads((ROOT / "deploy/grafana/penstock.json").read_text())
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
GUIDE = (ROOT / "docs/guides/monitoring.md").read_text()
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = {
    f"{panel['title']}: {target['expr']}": target["expr"]
    for panel in PANELS
    for target in panel["targets"]
}
# What Prometheus makes of a metric.
SERIES = {
    metric.exported_name(name) + suffix
    for name, metric in METRICS.items()
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}
FILES = {f"train/{number}.jpg": bytes([number]) * 60_000 for number in range(8)}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"penstock_[a-z_]+", text))


# -- without a Prometheus -----------------------------------------------------------------------


def test_the_board_and_the_alerts_ask_for_metrics_of_the_table_only() -> None:
    asked = {name for query in QUERIES.values() for name in names_in(query)}
    assert len(QUERIES) == sum(len(panel["targets"]) for panel in PANELS), "none stands twice"
    assert asked <= SERIES
    alerted = {name for rule in RULES for name in names_in(rule["expr"])}
    assert alerted <= SERIES
    assert names_in(GUIDE) <= SERIES


def test_the_board_can_be_imported_as_it_is() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert 'mount=~"$mount"' in target["expr"]
    assert [one["name"] for one in BOARD["templating"]["list"]] == ["datasource", "mount"]


def test_every_alert_says_what_is_wrong_and_what_to_look_at() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "mount" in rule["annotations"]["summary"] or rule["alert"] == "PenstockDown"


# -- with a Prometheus ---------------------------------------------------------------------------


def tool(name: str) -> str:
    found = which(name)
    assert found, f"{name} is missing; `make test-slow` installs it"
    return found


@dataclass(frozen=True)
class Prometheus:
    port: int

    def get(self, path: str, **words: str) -> Any:
        address = f"http://127.0.0.1:{self.port}/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer).get("data")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def values(self, query: str) -> list[float]:
        """Those that are numbers: a quantile of nothing is none."""
        found = self.get("api/v1/query", query=query)["result"]
        return [value for one in found if not math.isnan(value := float(one["value"][1]))]

    def state_of_alert(self, name: str) -> str:
        (group,) = self.get("api/v1/rules")["groups"]
        (state,) = (one["state"] for one in group["rules"] if one["name"] == name)
        return state


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def prometheus(tmp_path: Path, port: int) -> Iterator[Prometheus]:
    """One with the configuration of the guide, of its own address and in a hurry."""
    program = tool("prometheus")
    text = scrape_config().replace("127.0.0.1:9567", f"127.0.0.1:{port}")
    settings = yaml.safe_load(text)
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(ALERTS)]
    (config := tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    found = Prometheus(free_port())
    command = [
        program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{found.port}", "--log.level=warn",
    ]  # fmt: skip
    with running(command, ready=found.is_ready, log=tmp_path / "prometheus.log"):
        yield found


def scrape_config() -> str:
    """The configuration that the guide shows."""
    found = re.findall(r"^( *)```yaml\n(.*?)^ *```", GUIDE, re.M | re.S)
    return next(text for _, text in found if "scrape_configs" in text)


@pytest.fixture
def mount(s3: S3, port: int, mounter: Mounter, tmp_path: Path) -> Mount:
    bucket: ObjectPath = s3.bucket(f"watched-{port}")
    write_tree(bucket, FILES)
    cache = ("--cache-dir", tmp_path / "cache", "--cache-size", "64MiB")
    return mounter(bucket.source, "--endpoint", s3.endpoint, *cache, "--metrics", str(port))


@pytest.mark.slow
def test_a_real_prometheus_has_a_value_for_every_query_of_the_board(
    mount: Mount, prometheus: Prometheus
) -> None:
    def read() -> None:
        """From the store, and then from the cache."""
        succeed("warm", mount.path, "--evict")
        for _ in range(2):
            drop_pages(mount.path / name for name in FILES)
            assert read_tree(mount.path) == FILES

    waiting = {
        what: query.replace("$__rate_interval", "1m").replace("$mount", ".*")
        for what, query in QUERIES.items()
    }

    def is_answered() -> bool:
        read()
        for what, query in list(waiting.items()):
            if prometheus.values(query):
                del waiting[what]
        return not waiting

    wait_until(is_answered, lambda: f"no value: {sorted(waiting)}", pause_s=0.5)
    (target,) = prometheus.get("api/v1/targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    known = set(prometheus.get("api/v1/label/__name__/values"))
    here = {name for name in SERIES if not name.startswith("penstock_shared_")}
    assert known >= here, "every metric of the table, not only those of the board"
    (read_bytes,) = prometheus.values("penstock_read_bytes_total")
    assert read_bytes >= 2 * sum(map(len, FILES.values()))
    assert prometheus.values('up{job="penstock"}') == [1]
    (group,) = prometheus.get("api/v1/rules")["groups"]
    assert [one["health"] for one in group["rules"]] == ["ok"] * len(RULES)
    assert [one["name"] for one in group["rules"] if one["state"] != "inactive"] == []
    os.kill(server := mount.stats()["pid"], signal.SIGSTOP)
    try:
        wait_until(lambda: prometheus.state_of_alert("PenstockNotServing") == "pending")
    finally:
        os.kill(server, signal.SIGCONT)
    wait_until(lambda: prometheus.state_of_alert("PenstockNotServing") == "inactive")


# What makes each alert fire, as series for promtool: a value each minute.
_FIRING = {
    "PenstockDown": {'up{job="penstock"}': "0x60"},
    "PenstockNotServing": {'penstock_serving{mount="/mnt"}': "0x60"},
    "PenstockRestartsOften": {'penstock_restarts_total{mount="/mnt"}': "0+1x60"},
    "PenstockWorkersRestartOften": {'penstock_worker_restarts_total{mount="/mnt"}': "0+1x60"},
    "PenstockReadsFail": {'penstock_errors_total{mount="/mnt",error="EIO"}': "0+1x60"},
    "PenstockStoreRefusesKeys": {
        'penstock_store_requests_total{mount="/mnt",verb="get",outcome="denied"}': "0+1x60"
    },
    "PenstockStoreFails": {
        'penstock_store_requests_total{mount="/mnt",verb="get",outcome="timeout"}': "0+20x60",
        'penstock_store_requests_total{mount="/mnt",verb="get",outcome="ok"}': "0+80x60",
    },
    "PenstockStoreIsSlow": {
        'penstock_fetch_seconds_bucket{mount="/mnt",le="0.1"}': "0+9x60",
        'penstock_fetch_seconds_bucket{mount="/mnt",le="5"}': "0+9x60",
        'penstock_fetch_seconds_bucket{mount="/mnt",le="10"}': "0+10x60",
        'penstock_fetch_seconds_bucket{mount="/mnt",le="+Inf"}': "0+10x60",
    },
    "PenstockListingFails": {'penstock_refresh_failing{mount="/mnt"}': "1x60"},
    "PenstockCacheDiskIsOut": {'penstock_tier_directories_out{mount="/mnt",tier="SSD"}': "1x60"},
    "PenstockCacheIsCorrupt": {'penstock_corrupt_blocks_total{mount="/mnt"}': "0x50 1x10"},
    "PenstockCacheIsTooSmall": {'penstock_declined_blocks_total{mount="/mnt"}': "0+1x60"},
    "PenstockMemoryIsShort": {
        'penstock_memory_bytes{mount="/mnt"}': "95x60",
        'penstock_memory_limit_bytes{mount="/mnt"}': "100x60",
    },
}
# A mount that is well: it reads, misses now and then, retries, and was replaced once.
_WELL = {
    'up{job="penstock"}': "1x60",
    'penstock_serving{mount="/mnt"}': "1x30 0 1x30",
    'penstock_restarts_total{mount="/mnt"}': "0x30 1x30",
    'penstock_worker_restarts_total{mount="/mnt"}': "0x60",
    'penstock_errors_total{mount="/mnt",error="EIO"}': "0x60",
    'penstock_errors_total{mount="/mnt",error="ESTALE"}': "0+1x60",
    'penstock_store_requests_total{mount="/mnt",verb="get",outcome="ok"}': "0+99x60",
    'penstock_store_requests_total{mount="/mnt",verb="get",outcome="timeout"}': "0+1x60",
    'penstock_store_requests_total{mount="/mnt",verb="get",outcome="denied"}': "0x60",
    'penstock_store_requests_total{mount="/mnt",verb="get",outcome="not_found"}': "0+50x60",
    'penstock_fetch_seconds_bucket{mount="/mnt",le="0.1"}': "0+10x60",
    'penstock_fetch_seconds_bucket{mount="/mnt",le="+Inf"}': "0+10x60",
    'penstock_refresh_failing{mount="/mnt"}': "0x60",
    'penstock_tier_directories_out{mount="/mnt",tier="SSD"}': "0x60",
    'penstock_corrupt_blocks_total{mount="/mnt"}': "0x60",
    'penstock_declined_blocks_total{mount="/mnt"}': "0x60",
    'penstock_memory_bytes{mount="/mnt"}': "80x60",
    'penstock_memory_limit_bytes{mount="/mnt"}': "100x60",
}


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_none_does_for_a_mount_that_is_well(
    tmp_path: Path,
) -> None:
    assert {rule["alert"] for rule in RULES} == set(_FIRING)

    def case(series: dict[str, str], alert: str, expected: int) -> dict[str, Any]:
        values = [{"series": name, "values": text} for name, text in series.items()]
        query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        samples = [{"labels": "{}", "value": expected}]
        return {
            "interval": "1m",
            "input_series": values,
            "promql_expr_test": [{"expr": query, "eval_time": "55m", "exp_samples": samples}],
        }

    tests = [case({**_WELL, **series}, name, 1) for name, series in _FIRING.items()]
    tests += [case(_WELL, name, 0) for name in _FIRING]
    text = yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests})
    (path := tmp_path / "tests.yaml").write_text(text)
    for words in (["check", "rules", ALERTS], ["test", "rules", path]):
        result = subprocess.run(
            [tool("promtool"), *words], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_promtool_finds_nothing_to_improve_in_names_units_and_help(mount: Mount, port: int) -> None:
    assert read_tree(mount.path) == FILES
    for text in (succeed("stats", mount.path, "--prometheus"), fetch(port)):
        result = subprocess.run(
            [tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (result.returncode, result.stdout + result.stderr) == (0, "")
