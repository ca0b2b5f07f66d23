"""The rows of a run, the goals of a plan, and the shipped plans: what they count and claim."""

import importlib.machinery
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from penstock.bench.reporting.summary import Summary, summary_of
from tests.support.bench_ground import assert_nothing_left
from tests.support.report_samples import write_around, write_json

ROOT = Path(__file__).parent.parent.parent
FILES = 40
ARMS = {
    "native": ("native files", "native"),
    "penstock-cold": ("Penstock, cold", "penstock"),
    "penstock-passthrough": ("Penstock, cold, passthrough", "penstock"),
    "juicefs": ("JuiceFS, cold", "juicefs"),
    "rclone-cold": ("rclone mount, cold", "rclone"),
    "s3fs-cold": ("s3fs, cold", "s3fs"),
}
WARM: dict[str, Any] = {
    "state": "warm", "readers": 8, "passes": 2, "seconds": 2.0, "samples": 20_000,
    "bytes": 2_000_000_000, "cpu_s": {"system": 0.1, "readers": 0.5},
    "memory_bytes": 50_000_000, "messages": 6, "mode": "pagecache", "native_ratio": 0.97,
    "bare_ratio": None,
}  # fmt: skip
CACHED = WARM | {"state": "cached", "native_ratio": None}
COLD = WARM | {"state": "cold", "native_ratio": None, "bare_ratio": 0.81}
PASSTHROUGH = CACHED | {"native_ratio": 0.97, "mode": "passthrough"}

Samples = dict[tuple[str, str], list[dict[str, Any]]]  # by arm and data set


def run_of(
    folder: Path, samples: Samples, goals: list[dict[str, Any]] | None = None, cores: int = 2
) -> Summary:
    """A run with these samples, as its report reads it."""
    for order, ((arm, dataset), found) in enumerate(samples.items()):
        title, system = ARMS[arm]
        options = ["mode=passthrough"] if "passthrough" in arm else []
        write_result(
            folder,
            {
                "id": f"{arm}-{dataset}-{order}",
                "arm": {"name": arm, "title": title, "system": system, "version": "1.0 with x",
                        "state": "cold", "cache_share": 1, "options": options},
                "workload": {"name": "read", "kind": "read"},
                "shape": {"name": "plain", "latency_s": 0.0, "bytes_per_s": None},
                "dataset": dataset,
                "order": order,
                "epochs": [{"arm": arm, **one} for one in found],
            },
        )  # fmt: skip
    return summary(folder, goals, cores)


def write_result(folder: Path, result: dict[str, Any]) -> None:
    place = folder / "experiments" / result["id"] / "output"
    place.mkdir(parents=True)
    proofs = [{"name": "cold", "ok": True, "detail": "as it should be"}]
    write_json(place / "result.json", {"schema": 2, "valid": True, "proofs": proofs, **result})


def summary(folder: Path, goals: list[dict[str, Any]] | None, cores: int = 2) -> Summary:
    write_around(folder)
    write_json(folder / "plan.json", {"goals": goals or []})
    environment = json.loads((folder / "environment.json").read_text())
    write_json(folder / "environment.json", environment | {"cores": cores})
    (folder / "datasets").mkdir(exist_ok=True)
    for name, files in (("small", 1000), ("large", 2)):
        write_json(folder / "datasets" / f"{name}.json", {"files": files, "size_bytes": files})
    return summary_of(folder)


def printed(found: Summary) -> str:
    console = Console(width=150, file=io.StringIO(), record=True)
    found.print(console)
    return console.export_text()


def test_a_row_is_the_median_of_its_samples(tmp_path: Path) -> None:
    slower = WARM | {"seconds": 4.0, "native_ratio": 0.5}
    slowest = WARM | {"seconds": 8.0, "native_ratio": 0.2, "messages": 20}
    others = [CACHED, WARM | {"readers": 1}]
    found = run_of(tmp_path, {("penstock-cold", "small"): [slower, WARM, slowest, *others]})
    # States and counts of readers are rows of their own.
    rows = {(row.state, row.readers): row for row in found.rows}
    assert {key: len(row.measured) for key, row in rows.items()} == {
        ("warm", 8): 3, ("cached", 8): 1, ("warm", 1): 1,
    }  # fmt: skip
    row = rows["warm", 8]

    def mean(name: str) -> float | None:
        estimate = row.figure(name)
        return estimate.mean if estimate else None

    names = ("samples_per_s", "mb_per_s", "cpu_s_per_gb", "native_ratio", "messages", "memory_mb")
    assert [mean(name) for name in names] == [5000, 500, 0.05, 0.5, 3, 50]
    # One repeat has no interval; its neighbours, three, have one.
    native = row.figure("native_ratio")
    assert native is not None
    assert native.low is not None
    assert row.speed is not None
    assert row.speed.low is None


def test_repeats_are_put_together_and_what_no_arm_has_is_no_column(tmp_path: Path) -> None:
    arm = {"name": "native", "title": "native files", "system": "native", "version": ""}
    for repeat, seconds in enumerate((2.0, 4.0)):
        write_result(
            tmp_path,
            {"id": f"n{repeat}", "arm": arm, "workload": {"name": "read", "kind": "read"},
             "shape": {"name": "plain"}, "repeat": repeat,
             "epochs": [WARM | {"seconds": seconds, "messages": None, "cpu_s": {}}]},
        )  # fmt: skip
    found = summary(tmp_path, [])
    (row,) = found.rows
    assert row.repeats == 2
    (table,) = found.tables()
    assert table.head == ["read through", "state", "readers", "files/s", "95% interval", "MB/s",
                          "of native", "95% interval"]  # fmt: skip
    assert table.rows[0][:4] == ["native files", "warm", "8", "7,500"]


def test_a_table_names_versions_and_what_all_processes_of_a_system_cost(tmp_path: Path) -> None:
    samples: Samples = {
        ("native", "small"): [WARM | {"memory_bytes": 0}],
        ("penstock-cold", "small"): [CACHED, WARM],
        ("juicefs", "small"): [WARM | {"seconds": 8.0}],
    }
    found = run_of(tmp_path, samples)
    lines = {" ".join(line.split()) for line in printed(found).splitlines()}
    assert lines >= {
        "native files 1.0 warm 8 10,000 1,000 0.97 – – 3.0",
        "Penstock 1.0 cached 8 10,000 1,000 – 0.05 50 3.0",
        "JuiceFS 1.0 warm 8 2,500 250 0.97 0.05 50 3.0",
    }
    assert found.verdict.sentence == (
        "A warm epoch through Penstock reads at 97% of the speed of native files (one measurement) "
        "and sends its daemon 3 messages; that is 4.0 times as fast as JuiceFS."
    )
    # Without others there is nothing to compare.
    alone = run_of(tmp_path / "alone", {("penstock-cold", "small"): [WARM]})
    assert alone.verdict.sentence.endswith("sends its daemon 3 messages.")


def tool(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), f"{ROOT}/tools/{name}")
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_readme_names_versions_and_costs(tmp_path: Path) -> None:
    both = {(arm, "small"): [COLD, WARM] for arm in ("native", "penstock-cold", "juicefs")}
    found = run_of(tmp_path, both)
    publish = tool("publish-figures")
    lines = publish.table(found).splitlines()
    assert "| **Penstock** 1.0 | 10,000 | – | 10,000 | 0.97 | – |  | 0.05 | 50 |" in lines
    assert "| JuiceFS 1.0 | 10,000 | – | 10,000 | 0.97 | – |  | 0.05 | 50 |" in lines
    assert publish.speed_picture(found.rows).startswith("<svg")


def goal(arm: str = "penstock-cold", **fields: Any) -> dict[str, Any]:
    return {"arm": arm, "measure": "files-per-s", "epoch": "first", **fields}


OF_NATIVE = goal(state="warm", of="native", at_least=0.95)
OF_JUICEFS = goal(state="cached", dataset="small", of="juicefs", at_least=2.5)
OF_CLIENT = goal(state="cold", of="client", at_least=0.8, readers="most")
OF_PEERS = goal(state="cold", of="peers", at_least=1)
OF_PASSTHROUGH = goal("penstock-passthrough", state="cached", of="native", at_least=0.95)
OURS, THEIRS = ("penstock-cold", "small"), ("juicefs", "small")


@pytest.mark.parametrize(
    ("asked", "samples", "figures"),
    [
        (OF_NATIVE, {OURS: [WARM]}, [("0.97", True)]),
        (OF_NATIVE, {OURS: [WARM | {"native_ratio": 0.94}]}, [("0.94", False)]),
        (OF_NATIVE, {OURS: [CACHED, COLD]}, []),
        (OF_NATIVE | {"dataset": "large"}, {OURS: [WARM]}, []),
        # Each number of readers is judged, or the one that is named.
        (OF_NATIVE, {OURS: [WARM, WARM | {"readers": 1}]}, [("0.97", True)] * 2),
        (OF_NATIVE | {"readers": 8}, {OURS: [WARM, WARM | {"readers": 1}]}, [("0.97", True)]),
        # The local cache is held against JuiceFS of the same run.
        (OF_JUICEFS, {OURS: [CACHED], THEIRS: [CACHED | {"seconds": 5.0}]}, [("2.50", True)]),
        (OF_JUICEFS, {OURS: [CACHED], THEIRS: [CACHED | {"seconds": 4.9}]}, [("2.45", False)]),
        (OF_JUICEFS, {OURS: [CACHED]}, []),
        (OF_CLIENT, {OURS: [COLD, COLD | {"readers": 1, "bare_ratio": 0.2}]}, [("0.81", True)]),
        # Medians are compared with the fastest peer, and neither native nor the client is one.
        (OF_PEERS, {OURS: [COLD, COLD | {"arm": "bare client", "seconds": 1.0}],
                    ("rclone-cold", "small"): [COLD | {"seconds": 2.1}],
                    ("s3fs-cold", "small"): [COLD | {"seconds": 8.0}]}, [("1.05", True)]),
        (OF_PEERS, {OURS: [COLD], ("s3fs-cold", "small"): [COLD | {"seconds": 1.9}]},
         [("0.95", False)]),
        (OF_PEERS, {OURS: [COLD], ("rclone-cold", "large"): [COLD]}, []),
        (OF_PASSTHROUGH, {("penstock-passthrough", "large"): [PASSTHROUGH]}, [("0.97", True)]),
        # It fell back, and so proves nothing of passthrough.
        (OF_PASSTHROUGH, {("penstock-passthrough", "large"): [PASSTHROUGH | {"mode": "pagecache"}]},
         []),
        (goal(at_least=60_000), {OURS: [CACHED]}, [("10,000", False)]),
    ],
)  # fmt: skip
def test_goals_are_met_or_missed_by_what_was_measured(
    asked: dict[str, Any], samples: Samples, figures: list[tuple[str, bool]], tmp_path: Path
) -> None:
    found = run_of(tmp_path, samples, [asked])
    assert [(one.figure, one.met) for one in found.goals] == figures


@pytest.mark.parametrize(("cores", "met"), [(7, [True]), (8, [False])])
def test_goals_are_set_for_the_cores_of_the_machine(
    cores: int, met: list[bool], tmp_path: Path
) -> None:
    goals = [goal(at_least=9000, most_cores=7), goal(at_least=11_000, least_cores=8)]
    found = run_of(tmp_path, {OURS: [WARM]}, goals, cores)
    assert [one.met for one in found.goals] == met


def test_figures_of_a_catalog_are_judged_and_shown(tmp_path: Path) -> None:
    arm = {"name": "penstock-cold", "title": "Penstock, cold", "system": "penstock"}
    figures = {"files": 1_280_000, "ready_s": 0.4, "memory_mb": 250.0}
    result = {"id": "names", "arm": arm, "workload": {"name": "names", "kind": "catalog"},
              "shape": {"name": "plain"}, "dataset": "", "figures": figures}  # fmt: skip
    write_result(tmp_path, result)
    goals = [goal(measure="ready-s", at_most=1), goal(measure="memory-mb", at_most=200)]
    found = summary(tmp_path, goals)
    assert [(one.figure, one.met) for one in found.goals] == [("0.40", True), ("250", False)]
    assert "ready_s" in printed(found)


def epoch(number: int, seconds: float, first_s: float, **changes: Any) -> dict[str, Any]:
    store = {"gets": 4000, "get_bytes": changes.pop("get_bytes", 400_000_000)}
    state = "warm" if number else changes.pop("state", "planned")
    return {"epoch": number, "state": state, "readers": 1, "seconds": seconds, "samples": 4000,
            "bytes": 400_000_000,
            "busy_s": 9.6, "busy_share": 0.99, "first_batch_s": first_s, "store": store,
            "hit_bytes": None, "cpu_s": {"system": 0.6}, **changes}  # fmt: skip


def training(folder: Path, arm: str, epochs: list[dict[str, Any]]) -> None:
    title, system = {"native": ("native files", "native"),
                     "planned": ("Penstock, planned", "penstock")}[arm]  # fmt: skip
    write_result(
        folder,
        {
            "id": arm,
            "arm": {"name": arm, "title": title, "system": system,
                    "state": "warm" if system == "native" else "planned"},
            # A batch of 12 MB takes 0.2 s.
            "workload": {"name": "epoch", "kind": "loader", "model": "resnet50",
                         "accelerator": "h100", "emulated": True, "batch": 100, "step_s": 0.224,
                         "sample_bytes": 120_000},
            "shape": {"name": "far", "latency_s": 0.03, "bytes_per_s": 60e6},
            "epochs": epochs,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "epochs", "figure"),
    [
        ({"measure": "busy", "at_least": 0.95}, [epoch(0, 10, 0.38)], ("0.96", True)),
        ({"measure": "busy", "at_least": 0.95}, [epoch(0, 12, 0.5)], ("0.80", False)),
        ({"measure": "fetched", "at_most": 1.02}, [epoch(0, 10, 0.4)], ("1.00", True)),
        ({"measure": "fetched", "at_most": 1.02}, [epoch(0, 10, 0.4, get_bytes=412_000_000)],
         ("1.03", False)),
        # The first batch beyond native's and its transfer.
        ({"measure": "first-batch-round-trips", "at_most": 3}, [epoch(0, 10, 0.38)],
         ("2.67", True)),
        ({"measure": "first-batch-round-trips", "at_most": 3}, [epoch(0, 10, 0.5)],
         ("6.67", False)),
        # Later epochs are held against native of the same run, or against the cache's share.
        ({"measure": "files-per-s", "of": "native", "epoch": "later", "at_least": 0.98},
         [epoch(0, 12, 0.5), epoch(1, 10.1, 0.1)], ("0.99", True)),
        ({"measure": "hits", "epoch": "later", "at_least": 0.48},
         [epoch(0, 12, 0.5), epoch(1, 12, 0.1, hit_bytes={"MEM": 60_000_000})], ("0.15", False)),
    ],
)  # fmt: skip
def test_epochs_are_held_against_their_goals(
    asked: dict[str, Any], epochs: list[dict[str, Any]], figure: tuple[str, bool], tmp_path: Path
) -> None:
    training(tmp_path, "native", [epoch(0, 10, 0.1), epoch(1, 10, 0.1)])
    training(tmp_path, "planned", epochs)
    found = summary(tmp_path, [goal("planned", **asked)])
    assert [(one.figure, one.met) for one in found.goals] == [figure]
    assert "Penstock, planned" in printed(found)


def test_a_job_that_reports_no_bytes_is_shown_without_shares_of_them(tmp_path: Path) -> None:
    job = epoch(1, 10, 0.1, hit_bytes={"MEM": 0})
    del job["bytes"]
    training(tmp_path, "planned", [job, job])
    assert "Penstock, planned" in printed(summary(tmp_path, []))


def bench_run(plan: str, medium: Path, out: Path, *changes: str) -> list[str]:
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "penstock", "bench", "run", str(ROOT / "plans" / plan)]
    return [*command, *words, "--medium", str(medium), "--out", str(out)]


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_STATE_DIR": str(tmp_path / "state")}


@pytest.mark.slow
def test_the_demo_prints_a_row_for_each_epoch_and_a_conclusion(
    medium: Path, tmp_path: Path
) -> None:
    command = bench_run("demo.yaml", medium, tmp_path, "dataset.files=60", "workloads.0.rounds=1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^ +(native|Penstock 0|rclone mount 1)?.* (cold|planned|warm) ", done.stdout, re.M
    )
    assert rows == [
        ("native", "warm"),
        ("Penstock 0", "planned"),
        ("", "warm"),
        ("Penstock 0", "cold"),
        ("", "warm"),
        ("rclone mount 1", "cold"),
        ("", "warm"),
        ("", "cold"),  # the bare client
    ]
    assert "From empty caches Penstock" in done.stdout
    assert "A warm epoch through Penstock reads at" in done.stdout
    assert_nothing_left(medium)
    results = Path(done.stdout.splitlines()[-1])
    for path in results.glob("experiments/*/output/result.json"):
        result = json.loads(path.read_text())
        assert result["valid"], result["proofs"]
        if result["arm"]["system"] != "native":
            first = ("cold-4-reading", "planned-4-reading")
            (proof,) = [one for one in result["proofs"] if one["name"] in first]
            assert "1.000 of the data read" in proof["detail"]


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing(medium: Path, tmp_path: Path) -> None:
    command = bench_run("demo.yaml", medium, tmp_path, "dataset.files=100")
    with subprocess.Popen(
        command, stdout=PIPE, stderr=PIPE, text=True, env=environment(tmp_path)
    ) as demo:
        assert demo.stderr is not None
        assert any("rclone-cold" in line and "running" in line for line in demo.stderr)
        demo.send_signal(signal.SIGINT)
        _, talk = demo.communicate(timeout=100)
    assert demo.returncode == 130, talk
    assert_nothing_left(medium)


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight epochs of a DataLoader, over three file systems
@pytest.mark.skipif(os.geteuid() != 0, reason="dropping pages needs root")
def test_two_epochs_of_each_arm_are_counted_at_the_store(medium: Path, tmp_path: Path) -> None:
    arms = ("native", "rclone-cold", "penstock-sampler", "penstock-planned")
    command = bench_run(
        "epoch.yaml",
        medium,
        tmp_path,
        f"dataset.files={FILES}",
        f"arms=[{', '.join(arms)}]",
        "goals=[{arm: penstock-planned, measure: fetched, atMost: 1.5}]",
        "workloads.epoch.scale=0.05",
        "workloads.epoch.workers=2",
        "network.far.latency=5ms",
    )
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    assert_nothing_left(medium)
    results = Path(done.stdout.splitlines()[-1])
    found = json.loads((results / "summary.json").read_text())
    assert [one["met"] for one in found["goals"]] == [True]
    seen: set[str] = set()
    for path in results.glob("experiments/*/output/result.json"):
        result = json.loads(path.read_text())
        arm = result["arm"]["name"]
        seen.add(arm)
        # The mount had the plans of hinted arms, and of no others; cold came from the store.
        assert result["valid"], result["proofs"]
        assert result["arm"]["hinted"] == (arm in ("penstock-sampler", "penstock-planned"))
        assert [one["samples"] for one in result["epochs"]] == [FILES] * 2
        first, second = (one["store"]["gets"] for one in result["epochs"])
        assert first >= FILES if arm != "native" else first == 0  # a hedge is a GET too
        assert second == 0
    assert seen == set(arms)


@pytest.mark.slow
def test_a_catalog_many_data_sets_and_random_reads_are_measured_without_a_store(
    medium: Path, tmp_path: Path
) -> None:
    workloads = (
        "[{name: names, kind: catalog, count: 500}, {name: sets, kind: resources, count: 2}, "
        "{name: random, kind: random, count: 16}]"
    )
    command = bench_run("many.yaml", medium, tmp_path, f"workloads={workloads}")
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    results = Path(done.stdout.splitlines()[-1])
    found = json.loads((results / "summary.json").read_text())["figures"]
    counts = {
        one["workload"]: one.get("files", one.get("datasets", one.get("mib"))) for one in found
    }
    assert counts == {"names": 500, "sets": 2, "random": 16}
    (shares,) = (one for one in found if one["workload"] == "random")
    assert {name for name in shares if name.endswith("_of_file")} == {
        f"{mode}_{engine}_{block}_of_file"
        for mode in ("pagecache", "passthrough")
        for engine in ("psync", "libaio", "io_uring", "mmap")
        for block in ("16k", "256k")
    }
    assert all(value > 0 for name, value in shares.items() if name.endswith("_of_file"))
    assert all(value > 0 for one in found for name, value in one.items() if name.endswith("_s"))
    assert_nothing_left(medium)
