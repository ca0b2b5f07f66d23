"""The output of a training: a JSON line for each epoch on stdout, and DAWNBench's two files.

DAWNBench (2017 to 2020) compared trainings by the time to an accuracy: a TSV with a row for each
epoch and a JSON that describes the hardware. The author is named only if the options say so.
"""

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

TSV_COLUMNS = ("epoch", "hours", "top1Accuracy", "top5Accuracy")


@dataclass(frozen=True)
class Epoch:
    epoch: int
    images_per_s: float  # of all ranks, while training
    data_wait_share: float  # of the training's time, the mean of all ranks
    top1: float | None  # per cent of the validation's images; None: there are none
    top5: float | None
    loss: float  # while training, smoothed labels included
    seconds: float  # of training; validation is not in it
    images: int  # trained on
    validation_s: float
    skipped: int  # broken images so far, with --skip-broken
    hours: float  # since training began, validation included


def line(epoch: Epoch) -> str:
    rounded = {
        name: round(value, 6 if name == "hours" else 4) if isinstance(value, float) else value
        for name, value in asdict(epoch).items()
    }
    return json.dumps(rounded)


def write_dawnbench(
    folder: Path, about: Mapping[str, str], misc: Mapping[str, object], epochs: list[Epoch]
) -> None:
    """Write `dawnbench.tsv` and `dawnbench.json` in `folder`, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [TSV_COLUMNS] + [
        (str(one.epoch + 1), f"{one.hours:.8f}", _accuracy(one.top1), _accuracy(one.top5))
        for one in epochs
    ]
    _replace(folder / "dawnbench.tsv", "".join("\t".join(row) + "\n" for row in rows))
    entry: dict[str, object] = {
        "version": "v1.0",
        "author": about.get("author", ""),
        "authorEmail": about.get("authorEmail", ""),
        "framework": about.get("framework", ""),
        "codeURL": about.get("codeURL", ""),
        "model": about.get("model", ""),
        "hardware": about.get("hardware", ""),
        "timestamp": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "logFilename": about.get("logFilename", ""),
        "misc": dict(misc),
    }
    if cost := about.get("costPerHour"):
        entry["costPerHour"] = float(cost)
    _replace(folder / "dawnbench.json", json.dumps(entry, indent=2) + "\n")


def _accuracy(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    beside.replace(path)
