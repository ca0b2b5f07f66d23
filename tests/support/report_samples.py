"""Results trees made up for tests, the same from the same seed. Nothing in them was measured."""

import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SIZE_BYTES, FILES = 220_000_000, 2000
BATCH, STEP_S, SCALE = 100, 0.224, 0.25
COUNTS = (1, 2, 4, 8, 16, 32, 64)

# name, title, system, state, cache share, hinted, files/s near, files/s far (20 ms), later epochs
ARMS: dict[str, tuple[str, str, str, float, bool, float, float, float]] = {
    "ceiling": ("zero I/O", "ceiling", "warm", 1, False, 60_000, 60_000, 60_000),
    "native": ("native files", "native", "warm", 1, False, 14_200, 14_300, 14_250),
    "penstock-warm": ("Penstock warm", "penstock", "warm", 1, False, 13_900, 13_950, 13_900),
    "penstock-planned": ("Penstock planned", "penstock", "planned", 1, True, 2600, 2300, 13_800),
    "penstock-cold": ("Penstock cold", "penstock", "cold", 1, False, 1500, 380, 13_700),
    "penstock-half": ("Penstock, cache of 50%", "penstock", "warm", 0.5, False, 2400, 730, 2400),
    "juicefs-warm": ("JuiceFS warm", "juicefs", "warm", 1, False, 410, 405, 410),
    "rclone": ("rclone mount", "rclone", "cold", 0, False, 390, 96, 110),
    "s3fs": ("s3fs", "s3fs", "cold", 0, False, 220, 61, 64),
}
VERSIONS = {"juicefs": "0.14.2", "rclone": "1.75.2", "s3fs": "1.90", "penstock": "0.1.0"}
READ: dict[str, Any] = {
    "name": "read", "kind": "read", "model": None, "accelerator": None, "accelerators": None,
    "emulated": False, "batch": None, "step_s": None, "samples_per_s_wanted": None, "scale": 1,
}  # fmt: skip
RESNET: dict[str, Any] = {
    "name": "resnet50", "kind": "emulated", "model": "resnet50", "accelerator": "h100",
    "accelerators": 1, "emulated": True, "batch": BATCH, "step_s": STEP_S,
    "samples_per_s_wanted": BATCH / STEP_S, "scale": SCALE,
}  # fmt: skip
NEAR: dict[str, Any] = {"name": "near", "latency_s": 0.0, "bytes_per_s": None}
FAR: dict[str, Any] = {"name": "far", "latency_s": 0.02, "bytes_per_s": 50e6}
EIGHT = tuple(name for name in ARMS if name != "penstock-half")

Change = Callable[[dict[str, Any]], None]


def make_run(
    folder: Path, *, arms: Iterable[str] = EIGHT, workloads: Iterable[dict[str, Any]] = (READ,),
    shapes: Iterable[dict[str, Any]] = (FAR,), repeats: int = 3, seed: int = 1,
    spread: float = 0.03, faster: float = 1.0, change: Change = lambda result: None,
    raw: bool = True, state: str = "done",
) -> Path:  # fmt: skip
    """A whole run. `change` is called with each result before it is written."""
    dice = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = itertools.product(range(repeats), workloads, shapes, arms)
    for order, (repeat, workload, shape, arm) in enumerate(wanted):
        made = result(arm, workload, shape, repeat, order, dice, spread, faster)
        change(made)
        write_experiment(folder, made, dice, raw=raw)
    write_around(folder, state)
    return folder


def result(
    arm: str, workload: dict[str, Any], shape: dict[str, Any], repeat: int, order: int,
    dice: random.Random, spread: float, faster: float,
) -> dict[str, Any]:  # fmt: skip
    title, system, state, share, hinted, near, far, later = ARMS[arm]
    id_ = f"{arm}-{workload['name']}-{shape['name']}-r{repeat}-"
    id_ += "".join(dice.choice("abcdefghijkmnpqrstuvwxyz") for _ in range(4))
    first = (near if shape["name"] == "near" else far) * faster
    epochs = [
        epoch(number, arm, workload, speed * dice.gauss(1, spread), dice)
        for number, speed in enumerate((first, later * faster))
    ]
    began = datetime(2026, 1, 5, 12, tzinfo=UTC) + timedelta(seconds=20 * order)
    runs: list[dict[str, Any]] = []
    if workload["kind"] == "emulated":
        wanted = workload["batch"] / workload["step_s"]
        capacity = first * dice.gauss(1, spread) / wanted
        runs = [
            {"accelerators": count, "busy_share": round(min(0.992, capacity / count), 4)}
            for count in COUNTS
        ]
    return {
        "schema": 1, "id": id_,
        "arm": {"name": arm, "title": title, "system": system, "state": state,
                "version": VERSIONS.get(system, ""), "cache_share": share, "hinted": hinted,
                "command": f"{system} mount …", "options": ["-o", "ro"]},
        "workload": dict(workload), "shape": dict(shape), "repeat": repeat, "order": order,
        "seed": 7 + repeat, "started": began.isoformat(), "seconds": 14.2, "valid": True,
        "proofs": proofs(state), "failure": None, "epochs": epochs, "accelerator_runs": runs,
    }  # fmt: skip


def epoch(
    number: int, arm: str, workload: dict[str, Any], speed: float, dice: random.Random
) -> dict[str, Any]:
    _, system, state, share, _, *_ = ARMS[arm]
    busy_s = 0.0
    if workload["kind"] == "emulated":
        wanted = workload["batch"] / workload["step_s"]
        speed = min(speed, wanted * dice.uniform(0.985, 0.995))
        busy_s = FILES / wanted
    seconds = FILES / speed
    direct, cold = share == 0, state != "warm" and number == 0
    away = 0.0 if system in ("native", "ceiling") else 1.0 if direct or cold else 1.0 - share
    hits: dict[str, int] | None = None
    if system == "penstock":
        hits = {
            "MEM": int(SIZE_BYTES * 0.3 * (1 - away)),
            "SSD": int(SIZE_BYTES * 0.1 * (1 - away)),
        }
    return {
        "epoch": number, "seconds": seconds, "samples": FILES, "bytes": SIZE_BYTES,
        "busy_s": busy_s, "busy_share": busy_s / seconds if busy_s else None,
        "wait_s": seconds - busy_s, "first_batch_s": 50 / speed,
        "store": {"gets": int(FILES * away), "get_bytes": int(SIZE_BYTES * away),
                  "other_requests": 3},
        "hit_bytes": hits,
        "cpu_s": {"system": 0.01 * dice.uniform(1, 3) * (20 if direct else 1), "readers": 0.15},
        "memory_bytes": int(dice.uniform(50, 90) * 1e6 * (3 if system == "juicefs" else 1)),
    }  # fmt: skip


def proofs(state: str) -> list[dict[str, Any]]:
    if state == "warm":
        return [{"name": "store-untouched", "ok": True, "said": "0 bytes left the store"}]
    return [
        {"name": "cache-empty", "ok": True, "said": "the cache's folder holds no file"},
        {"name": "all-from-store", "ok": True, "said": "220,000,000 of 220,000,000 bytes"},
    ]


def write_experiment(
    folder: Path, made: dict[str, Any], dice: random.Random, *, raw: bool = True
) -> Path:
    place = folder / "experiments" / made["id"]
    for name in ("config", "output", "logs"):
        (place / name).mkdir(parents=True, exist_ok=True)
    write_json(place / "config" / "experiment.json", {"id": made["id"]})
    write_json(place / "output" / "result.json", made)
    if raw:
        for name, content in raw_files(made, dice).items():
            write_json(place / "output" / name, content)
    return place


def raw_files(made: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    total_s = sum(one["seconds"] for one in made["epochs"])
    interval_s = max(0.01, total_s / 90)
    sizes: list[float] = []
    marks: list[float] = []
    for one in made["epochs"]:
        marks.append(len(sizes) * interval_s)
        count = max(1, round(one["seconds"] / interval_s))
        sizes += [one["bytes"] / count * max(0.1, dice.gauss(1, 0.12)) for _ in range(count)]
    middle = [one["seconds"] / FILES * 8 for one in made["epochs"]]
    found: dict[str, Any] = {
        "series.json": {"interval_s": interval_s, "bytes": sizes, "samples": [],
                        "epoch_marks_s": marks},
        "latencies.json": {
            "what": "open, read and close of one file",
            "epochs": [{"seconds": sorted(mid * dice.lognormvariate(0, 0.4) for _ in range(300))}
                       for mid in middle],
        },
    }  # fmt: skip
    if made["workload"]["kind"] == "emulated":
        found["steps.json"] = {"epochs": [steps(one, dice) for one in made["epochs"]]}
    return found


def steps(one: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    count = FILES // BATCH
    wait = max(0.002, (one["seconds"] - one["busy_s"]) / count)
    return {
        "load_s": [wait * dice.lognormvariate(0, 0.5) for _ in range(count)],
        "compute_s": [STEP_S] * count,
        "barrier_s": [abs(dice.gauss(0, 0.006)) for _ in range(count)],
    }


def write_around(folder: Path, state: str = "done") -> None:
    """What a run writes beside its experiments."""
    (folder / "plan.yaml").write_text("name: made-up\n")
    write_json(folder / "environment.json", {
        "kernel": "6.18.5", "cpu": "A made-up CPU @ 2.40GHz", "cores": 2,
        "memory_bytes": 8 << 30, "distribution": "Debian GNU/Linux 13", "python": "3.11.7",
        "penstock": "0.1.0", "versions": {"rclone": "1.75.2", "JuiceFS": "0.14.2"},
        "commands": ["penstock bench run plan.yaml"], "started": "2026-01-05T12:00:00+00:00",
    })  # fmt: skip
    write_json(folder / "dataset.json", {
        "form": "jpeg", "files": FILES, "size_bytes": SIZE_BYTES, "sha256": "5e" * 32, "seed": 1,
        "samples": FILES,
    })  # fmt: skip
    place = folder / "experiments"
    ids = sorted(one.name for one in place.iterdir()) if place.is_dir() else []
    before = ("check", "make-dataset", "start-store", "upload-dataset")
    steps = [(name, before[:number][-1:], False) for number, name in enumerate(before)]
    steps += [(id_, before[-1:], False) for id_ in ids]
    steps += [("report", tuple(ids), False), ("copy-results", (), True), ("sweep", (), True)]
    write_json(folder / "workflow.json", {
        "run": folder.name, "state": state,
        "steps": [
            {"name": name, "needs": list(needs), "state": "done", "attempts": 1, "last": last,
             "started": f"2026-01-05T12:{number % 60:02}:00Z",
             "ended": f"2026-01-05T12:{number % 60:02}:{7 * number % 53 + 3:02}.250Z",
             "error": None}
            for number, (name, needs, last) in enumerate(steps)
        ],
    })  # fmt: skip


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def invalidate(one: dict[str, Any], name: str, said: str) -> None:
    one["valid"] = False
    one["proofs"].append({"name": name, "ok": False, "said": said})


def fail(one: dict[str, Any], what: str, hint: str = "") -> None:
    one.update(valid=False, epochs=[], accelerator_runs=[], failure={"what": what, "hint": hint})


HOSTILE = "<script>alert(1)</script> \"数据集\" & 'x' \u202eexe\x00 | `b` [a](http://evil.example/)"


def hostile(one: dict[str, Any]) -> None:
    one["arm"]["title"] += f" {HOSTILE}"
    one["workload"]["name"] += f" {HOSTILE}"
    one["shape"]["name"] = "远" * 30
    one["proofs"][0]["said"] = HOSTILE


def some_bad(one: dict[str, Any]) -> None:
    name = one["arm"]["name"]
    if name == "penstock-warm" and one["repeat"] == 1:
        invalidate(one, "store-untouched", "1,204,224 bytes left the store in epoch 1")
    if name == "juicefs-warm":
        invalidate(one, "store-untouched", "55,000,000 bytes left the store in epoch 0")
    if name == "s3fs":
        fail(one, "s3fs ended with exit code 1 while mounting", "its log is in logs/s3fs.log")


def interrupted(folder: Path) -> Path:
    make_run(folder, arms=("native", "penstock-warm", "rclone"), workloads=(READ, RESNET),
             repeats=1, state="running")  # fmt: skip
    gone = [place.name for place in sorted((folder / "experiments").iterdir())[1:3]]
    for path in (folder / "experiments" / gone[0] / "output").iterdir():
        path.unlink()
    shutil.rmtree(folder / "experiments" / gone[1])
    workflow = json.loads((folder / "workflow.json").read_text())
    for step in workflow["steps"]:
        if step["name"] in gone or step["name"] == "report" or step["last"]:
            step.update(state="running" if step["name"] == gone[0] else "waiting", ended=None)
    write_json(folder / "workflow.json", workflow)
    return folder
