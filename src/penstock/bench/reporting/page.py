"""The documents of a run: report.html, report.md, summary.json; each written whole or not at all.

The page is one file that needs nothing from elsewhere. Its layout and style are in templates/,
which Jinja2 fills in with every value escaped; here is what they are filled in with.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock.bench.reporting import estimates
from penstock.bench.reporting.charts import CHARTS
from penstock.bench.reporting.results import Run, number, text
from penstock.bench.reporting.summary import DISCLAIMER, METHOD, Summary, summary_of
from penstock.bench.reporting.tables import Table, clean, markdown, plain
from penstock.errors import ResultsError
from penstock.store.redaction import redact
from penstock.units import format_duration, format_size

NAMES = ("report.html", "report.md", "summary.json")


def write(run: Path) -> list[Path]:
    """Write all three into the run's own folder, and return their paths.

    A run without a single result has a report too: it shows the steps and what failed.
    """
    summary = summary_of(run)
    paths = [run / name for name in NAMES]
    for path in paths:
        write_one(summary, path)
    return paths


def write_one(summary: Summary, path: Path) -> None:
    """Write the document that the suffix names: .html, .md or .json."""
    kind = path.suffix.lower()
    if kind == ".html":
        document = page(summary, prefix=_prefix(summary.run.folder, path))
    elif kind == ".md":
        document = markdown_page(summary)
    elif kind == ".json":
        document = json.dumps(summary.to_json(), indent=1, allow_nan=False) + "\n"
    else:
        raise ResultsError(
            f"{path}: a report is .html, .md or .json", hint="name it like report.html"
        )
    _replace(path, document)


def page(summary: Summary, *, prefix: str = "") -> str:
    """Return report.html. `prefix` leads from its folder to the run's, for links to raw files."""
    run = summary.run
    environment = _environment(autoescape=True)

    def address(path: str) -> str:
        return _address(prefix + path)

    environment.filters["address"] = address
    return environment.get_template("report.html").render(
        _common(summary),
        started=_when(run.environment.get("started")),
        badges=_badges(summary),
        charts=[draw(summary) for draw in CHARTS],
        proofs=_proofs(run),
        environment=_machine_table(run),
        arms=_arms(summary),
        longest_s=max((step.seconds or 0.0 for step in run.steps), default=0.0) or 1.0,
    )


def markdown_page(summary: Summary) -> str:
    """Return report.md."""
    environment = _environment(autoescape=False)
    environment.filters |= {"plain": plain, "table": markdown}
    return environment.get_template("report.md").render(_common(summary)) + "\n"


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("penstock.bench.reporting"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_cleaned,
    )
    environment.filters |= {
        "duration": format_duration,
        "redact": redact,
        "seconds": estimates.seconds,
    }
    return environment


def _cleaned(value: Any) -> Any:
    return clean(value) if type(value) is str else value  # not Markup: it was cleaned before


def _common(summary: Summary) -> dict[str, Any]:
    run = summary.run
    given = [redact(text(one)) for one in run.environment.get("commands") or ()]
    machine = (
        *(_dataset(one) for one in run.datasets.values()),
        _processor(run.environment),
        _size(run.environment.get("memory_bytes")),
    )
    return {
        "run": run,
        "verdict": summary.verdict,
        "tables": list(summary.tables()),
        "method": METHOD,
        "disclaimer": DISCLAIMER,
        "machine": [part for part in machine if part],
        "commands": given or ["penstock bench run plan.yaml"],
    }


def _address(path: str) -> str:
    """Return a relative link that no browser takes for an address with a scheme."""
    place = quote(clean(path), safe="/.-_~")
    return place if place.startswith("../") else f"./{place}"


def _when(started: Any) -> str:
    """`· 5 January 2026, 12:00 UTC`; the text itself if it is no time."""
    try:
        when = datetime.fromisoformat(text(started))
    except ValueError:
        return f" · {text(started)}" if started else ""
    return f" · {when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".rstrip()


def _badges(summary: Summary) -> list[tuple[str, str]]:
    run = summary.run
    found: list[tuple[str, str]] = []
    if not run.ended:
        total = len(run.results) + len(run.unfinished)
        found.append(
            ("bad", f"did not end: {len(run.results)} of {total} experiments have a result")
        )
    if failed := [step.name for step in run.steps if step.state == "failed"]:
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        found.append(("bad", f"failed: {', '.join(failed[:3])}{more}"))
    if run.skipped:
        found.append(("bad", f"{len(run.skipped)} not run"))
    if run.left_out:
        found.append(("bad", f"{len(run.left_out)} left out: failed or invalid"))
    if any(row.setting.workload.emulated for row in summary.rows):
        found.append(("", "accelerators are emulated"))
    if any(row.arm.hinted for row in summary.rows):
        found.append(("", "some arms are hinted"))
    if summary.rows and max(row.repeats for row in summary.rows) == 1:
        found.append(("", "one repeat: no intervals of speeds"))
    found.append(("", DISCLAIMER.rstrip(".")))
    return found


def _proofs(run: Run) -> Table:
    """Return how often each proof held, with an example; a failed one if there is one."""
    names = dict.fromkeys(proof.name for one in run.results for proof in one.proofs)
    rows: list[tuple[str, ...]] = []
    for name in names:
        found = [proof for one in run.results for proof in one.proofs if proof.name == name]
        failed = [proof for proof in found if not proof.ok]
        example = (failed or found)[0].detail
        rows.append((name, example, str(len(found) - len(failed)), str(len(failed))))
    return Table(("proof", "for example", "held", "failed"), tuple(rows))


def _machine_table(run: Run) -> Table:
    found = run.environment
    rows = [
        *((f"data set {name}", _dataset(one)) for name, one in run.datasets.items()),
        ("processor", _processor(found)),
        ("memory", _size(found.get("memory_bytes"))),
        ("kernel", text(found.get("kernel"))),
        ("distribution", text(found.get("distribution"))),
        ("Penstock", text(found.get("penstock"))),
        ("Python", text(found.get("python"))),
        *run.versions.items(),
        ("started", text(found.get("started"))),
    ]
    return Table(("what", "value"), tuple((name, redact(value)) for name, value in rows if value))


def _arms(summary: Summary) -> Table:
    known = {row.arm.name: row.arm for row in summary.rows}
    rows = tuple(
        (
            arm.label,
            arm.version,
            arm.state,
            f"{arm.cache_share:.0%}",
            redact(" ".join([arm.command, *arm.options]).strip()),
        )
        for arm in sorted(known.values(), key=lambda arm: arm.rank)
    )
    return Table(("arm", "version", "state", "cache", "mounted by"), rows, texts=range(5))


def _dataset(found: Mapping[str, Any]) -> str:
    files, size = number(found.get("files")), number(found.get("size_bytes"))
    parts = [
        text(found.get("form")),
        "" if files is None else f"{files:,.0f} files",
        "" if size is None else format_size(size),
        f"sha256 {text(found['sha256'])[:16]}" if found.get("sha256") else "",
        f"seed {text(found['seed'])}" if found.get("seed") is not None else "",
    ]
    return _joined(parts)


def _processor(found: Mapping[str, Any]) -> str:
    cores = number(found.get("cores"))
    return _joined([text(found.get("cpu")), "" if cores is None else f"{cores:.0f} cores"])


def _size(value: Any) -> str:
    found = number(value)
    return "" if found is None else format_size(found)


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if part)


def _prefix(run: Path, path: Path) -> str:
    """Return the path from the page's folder to the run's, so that its links work anywhere."""
    way = os.path.relpath(run.resolve(), path.resolve().parent)
    return "" if way == "." else f"{way}/"


def _replace(path: Path, document: str) -> None:
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        ) as file:
            # Results are for sharing; a temporary file would be readable by its owner alone.
            os.fchmod(file.fileno(), 0o644)
            file.write(clean(document))
        os.replace(file.name, path)
    except OSError as error:
        raise ResultsError(
            f"{path}: cannot be written: {error.strerror}", hint="-o names another place"
        ) from error
