"""Results trees made up for tests, the same from the same seed. Nothing in them was measured."""

import itertools
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SIZE_BYTES, FILES = 220_000_000, 2000

# title, system, state, cache share, hinted, files/s near, files/s far (20 ms), later epochs
ARMS: dict[str, tuple[str, str, str, float, bool, float, float, float]] = {
    "ceiling": ("zero I/O", "ceiling", "warm", 1, False, 60_000, 60_000, 60_000),
    "native": ("native files", "native", "warm", 1, False, 14_200, 14_300, 14_250),
    "penstock-warm": ("Penstock warm", "penstock", "warm", 1, False, 13_900, 13_950, 13_900),
    "penstock-planned": ("Penstock planned", "penstock", "planned", 1, True, 2600, 2300, 13_800),
    "penstock-cold": ("Penstock cold", "penstock", "cold", 1, False, 1500, 380, 13_700),
    "juicefs-warm": ("JuiceFS warm", "juicefs", "warm", 1, False, 410, 405, 410),
    "rclone": ("rclone mount", "rclone", "cold", 0, False, 390, 96, 110),
    "s3fs": ("s3fs", "s3fs", "cold", 0, False, 220, 61, 64),
}
READ: dict[str, Any] = {"name": "read", "kind": "read", "emulated": False, "scale": 1}
RESNET: dict[str, Any] = {
    "name": "resnet50", "kind": "emulated", "model": "resnet50", "accelerator": "h100",
    "accelerators": 1, "emulated": True, "batch": 100, "step_s": 0.224, "scale": 0.25,
}  # fmt: skip
NEAR: dict[str, Any] = {"name": "near", "latency_s": 0.0, "bytes_per_s": None}
FAR: dict[str, Any] = {"name": "far", "latency_s": 0.02, "bytes_per_s": 50e6}
# The long lists of one experiment, of two epochs.
RAW: dict[str, Any] = {
    "series.json": {"interval_s": 0.1, "bytes": [[1e6] * 50] * 2},
    "latencies.json": {"what": "one file", "epochs": [{"seconds": [0.01, 0.02, 0.04]}] * 2},
}

Change = Callable[[dict[str, Any]], None]


def make_run(
    folder: Path,
    *,
    arms: Iterable[str] = tuple(ARMS),
    workloads: Iterable[dict[str, Any]] = (READ,),
    shapes: Iterable[dict[str, Any]] = (FAR,),
    repeats: int = 3,
    seed: int = 1,
    spread: float = 0.03,
    faster: float = 1.0,
    change: Change = lambda result: None,
    raw: bool = True,
) -> Path:
    """A whole run. `change` is called with each result before it is written."""
    dice = random.Random(seed)
    wanted = itertools.product(range(repeats), workloads, shapes, arms)
    for order, (repeat, workload, shape, arm) in enumerate(wanted):
        made = result(arm, workload, shape, repeat, lambda: faster * dice.gauss(1, spread))
        made |= {"id": f"{made['id']}-{order}", "order": order}
        change(made)
        place = folder / "experiments" / made["id"] / "output"
        place.mkdir(parents=True)
        for name, content in {"result.json": made, **(RAW if raw else {})}.items():
            write_json(place / name, content)
    write_around(folder)
    return folder


def result(
    arm: str,
    workload: dict[str, Any],
    shape: dict[str, Any],
    repeat: int,
    noise: Callable[[], float],
) -> dict[str, Any]:
    title, system, state, share, hinted, near, far, later = ARMS[arm]
    first = near if shape["name"] == "near" else far
    wanted = workload.get("batch", 0) / workload.get("step_s", 1)  # by an accelerator, a second
    busy_s, epochs = FILES / wanted if wanted else 0.0, []
    for number, speed in enumerate((first * noise(), later * noise())):
        seconds = FILES / (min(speed, 0.99 * wanted) if wanted else speed)
        stored = share == 0 or (state != "warm" and number == 0)
        away = stored and system not in ("native", "ceiling")
        epochs.append(
            {
                "epoch": number if wanted else None,
                "state": "warm" if not away else "cold" if share == 0 else state,
                "readers": 1 if wanted else 4,
                "seconds": seconds,
                "samples": FILES,
                "bytes": SIZE_BYTES,
                "busy_s": busy_s or None,
                "busy_share": busy_s / seconds if busy_s else None,
                "first_batch_s": seconds / 40,
                "store": {
                    "gets": FILES * away,
                    "get_bytes": SIZE_BYTES * away,
                    "other_requests": 3,
                },
                "hit_bytes": {"MEM": SIZE_BYTES // 3 * (not away)}
                if system == "penstock"
                else None,
                "cpu_s": {"system": 0.02, "readers": 0.15},
                "memory_bytes": 70_000_000,
            }
        )
    capacity = first * noise() / wanted if wanted else 0.0
    # By more accelerators at once; the first number is the one that has all epochs.
    shares = {count: min(0.992, capacity / count) for count in (1, 2, 4, 8, 16, 32, 64) if wanted}
    set_busy(epochs, shares)
    return {
        "schema": 2,
        "id": f"{arm}-{workload['name']}-{shape['name']}-r{repeat}",
        "arm": {
            "name": arm,
            "title": title,
            "system": system,
            "state": state,
            "version": "1.0",
            "cache_share": share,
            "hinted": hinted,
            "command": f"{system} mount …",
            "options": ["-o", "ro"],
        },
        "workload": dict(workload),
        "shape": dict(shape),
        "repeat": repeat,
        "seed": 7 + repeat,
        "started": "2026-01-05T12:00:00+00:00",
        "seconds": 14.2,
        "valid": True,
        "proofs": [{"name": "as-claimed", "ok": True, "detail": "0 bytes left the store"}],
        "failure": None,
        "epochs": epochs,
    }


def set_busy(epochs: list[dict[str, Any]], shares: dict[int, float]) -> None:
    """Let the first epoch be this busy, by each number of accelerators."""
    first, *later = [one for one in epochs if one["readers"] == 1 or one["epoch"] is None]
    epochs[:] = [first, *later]
    for count, share in shares.items():
        one = first if count == 1 else first | {"readers": count}
        one["busy_share"] = share
        if count > 1:
            epochs.append(one)


def write_around(folder: Path) -> None:
    """What a run writes beside its experiments."""
    (folder / "plan.yaml").write_text("name: made-up\n")
    write_json(
        folder / "environment.json",
        {
            "kernel": "6.18.5",
            "cpu": "A made-up CPU @ 2.40GHz",
            "cores": 2,
            "memory_bytes": 8 << 30,
            "distribution": "Debian GNU/Linux 13",
            "python": "3.11.7",
            "penstock": "0.1.0",
            "versions": {"rclone": "1.75.2", "JuiceFS": "1.4.2"},
            "commands": ["penstock bench run plan.yaml"],
            "started": "2026-01-05T12:00:00+00:00",
        },
    )
    (folder / "datasets").mkdir(exist_ok=True)
    write_json(
        folder / "datasets" / "data.json",
        {
            "form": "jpeg",
            "files": FILES,
            "size_bytes": SIZE_BYTES,
            "sha256": "5e" * 32,
            "seed": 1,
            "samples": FILES,
        },
    )
    ids = sorted(one.name for one in folder.glob("experiments/*"))
    steps = [("upload-dataset", (), False), *((id_, ("upload-dataset",), False) for id_ in ids)]
    steps += [("report", tuple(ids), False), ("copy-results", (), True), ("sweep", (), True)]
    write_json(
        folder / "workflow.json",
        {
            "run": folder.name,
            "state": "done",
            "steps": [
                {
                    "name": name,
                    "needs": list(needs),
                    "state": "done",
                    "attempts": 1,
                    "last": last,
                    "started": "2026-01-05T12:00:00Z",
                    "ended": "2026-01-05T12:00:07.250Z",
                    "error": None,
                }
                for name, needs, last in steps
            ],
        },
    )


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def invalidate(one: dict[str, Any], name: str, said: str) -> None:
    one["valid"] = False
    one["proofs"].append({"name": name, "ok": False, "detail": said})


def fail(one: dict[str, Any], what: str, hint: str = "") -> None:
    one.update(valid=False, epochs=[], failure={"what": what, "hint": hint})


HOSTILE = "<script>alert(1)</script> \"数据集\" & 'x' \u202eexe\x00 | `b` [a](http://evil.example/)"


def hostile(one: dict[str, Any]) -> None:
    one["arm"]["title"] += f" {HOSTILE}"
    one["workload"]["name"] += f" {HOSTILE}"
    one["shape"]["name"] = "远" * 30
    one["proofs"][0]["detail"] = HOSTILE


def some_bad(one: dict[str, Any]) -> None:
    name = one["arm"]["name"]
    if name == "penstock-warm" and one["repeat"] == 1:
        invalidate(one, "store-untouched", "1,204,224 bytes left the store in epoch 1")
    if name == "juicefs-warm":
        invalidate(one, "store-untouched", "55,000,000 bytes left the store in epoch 0")
    if name == "s3fs":
        fail(one, "s3fs ended with exit code 1 while mounting", "its log is in logs/s3fs.log")


def set_steps(folder: Path, state: str, *names: str, run: str = "running") -> None:
    """Give the steps whose names begin so this state, and the run its own."""
    workflow = json.loads((folder / "workflow.json").read_text())
    for step in workflow["steps"]:
        if step["name"].startswith(names):
            step.update(state=state, ended=None)
    write_json(folder / "workflow.json", workflow | {"state": run})
