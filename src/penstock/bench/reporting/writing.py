"""Writes what is made of a run: summary.json, report.html, report.md; each whole or not at all."""

import json
import os
import tempfile
from pathlib import Path

from penstock.bench.reporting.cost import DEFAULT_PRICE, Price
from penstock.bench.reporting.markdown import markdown
from penstock.bench.reporting.markup import clean
from penstock.bench.reporting.page import page
from penstock.bench.reporting.summary import Summary, summary_of
from penstock.errors import ResultsError

NAMES = ("report.html", "report.md", "summary.json")


def summarize(run: Path, *, price: Price = DEFAULT_PRICE) -> Summary:
    """Reads a run and writes its summary.json."""
    summary = summary_of(run, price)
    write_one(summary, run / "summary.json")
    return summary


def write(run: Path, *, price: Price = DEFAULT_PRICE) -> list[Path]:
    """All three, into the run's own folder. A run without a single result has a report too: it
    shows the steps and what failed."""
    summary = summary_of(run, price)
    paths = [run / name for name in NAMES]
    for path in paths:
        write_one(summary, path)
    return paths


def write_one(summary: Summary, path: Path) -> None:
    """By the ending of its name: .html, .md or .json."""
    kind = path.suffix.lower()
    if kind == ".html":
        text = page(summary, prefix=_prefix(summary.run.folder, path))
    elif kind == ".md":
        text = markdown(summary)
    elif kind == ".json":
        text = json.dumps(summary.to_json(), indent=1, allow_nan=False) + "\n"
    else:
        raise ResultsError(
            f"{path}: a report is .html, .md or .json", hint="name it like report.html"
        )
    _replace(path, text)


def _prefix(run: Path, path: Path) -> str:
    """From the page's folder to the run's, so that links to raw files work wherever it lies."""
    way = os.path.relpath(run.resolve(), path.resolve().parent)
    return "" if way == "." else f"{way}/"


def _replace(path: Path, text: str) -> None:
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        ) as file:
            # Results are for sharing; a temporary file would be for its owner alone.
            os.fchmod(file.fileno(), 0o644)
            file.write(clean(text))
        os.replace(file.name, path)
    except OSError as error:
        raise ResultsError(
            f"{path}: cannot be written: {error.strerror}", hint="-o names another place"
        ) from error
