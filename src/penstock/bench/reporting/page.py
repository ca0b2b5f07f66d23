"""report.html: one file that needs nothing from elsewhere. The frame is page.html beside this."""

from datetime import datetime
from importlib.resources import files
from string import Template
from typing import Any

from penstock.bench.reporting import blocks, palette
from penstock.bench.reporting.charts import (
    accelerators,
    latency,
    origins,
    overtime,
    processors,
    requests,
    speed,
    steps,
)
from penstock.bench.reporting.charts.figure import Figure
from penstock.bench.reporting.markup import Html, clean, element, escaped, join
from penstock.bench.reporting.reading import text
from penstock.bench.reporting.summary import DISCLAIMER, METHOD, Summary
from penstock.bench.reporting.tiles import tiles

CHARTS = (speed, accelerators, overtime, steps, latency, origins, processors, requests)
LONG = 150  # characters of a verdict, beyond which it is set smaller
_REST = (
    ("proofs", "Proofs"),
    ("environment", "Where it ran"),
    ("workflow", "Steps of the run"),
    ("again", "Run it again"),
)


def page(summary: Summary, *, prefix: str = "") -> str:
    """`prefix` leads from the page's folder to the run's, for links to raw files."""
    run, sentence = summary.run, summary.verdict.sentence
    figures = [chart.draw(summary) for chart in CHARTS]
    frame = Template(files("penstock.bench.reporting").joinpath("page.html").read_text("utf-8"))
    names = [(one.id, one.title) for one in figures if isinstance(one, Figure)]
    return frame.substitute(
        title=escaped(f"{run.name} · Penstock benchmark"),
        palette=palette.style(),
        name=escaped(run.name),
        started=escaped(_when(run.environment.get("started"))),
        verdict=element("h1", sentence, class_="long" if len(sentence) > LONG else None),
        badges=_badges(summary),
        tiles=_tiles(summary),
        notes=_notes(summary),
        contents=element("ul", *(_entry(*one) for one in (*names, *_REST))),
        glance=_glance(summary),
        figures=join(blocks.figure(one, prefix) for one in figures),
        proofs=blocks.proofs(run, prefix),
        environment=blocks.environment(run),
        arms=blocks.arms(summary),
        steps=blocks.steps(run),
        again=blocks.again(run),
        method=escaped(METHOD),
        disclaimer=escaped(DISCLAIMER),
    )


def _when(started: Any) -> str:
    """`· 5 January 2026, 12:00 UTC`; what is no time, as it is; nothing if it is not known."""
    try:
        when = datetime.fromisoformat(text(started))
    except ValueError:
        return f" · {text(started)}" if started else ""
    return f" · {when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".rstrip()


def _entry(id_: str, title: str) -> Html:
    return element("li", element("a", title, href=f"#{id_}"))


def _badges(summary: Summary) -> Html:
    run = summary.run
    found: list[tuple[str, str]] = []
    if not run.ended:
        total = len(run.results) + len(run.unfinished)
        found.append(("bad", f"did not end: {len(run.results)} of {total} experiments have a "
                             "result"))  # fmt: skip
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
    if summary.rows and max(len(row.results) for row in summary.rows) == 1:
        found.append(("", "one repeat: no intervals"))
    found.append(("", DISCLAIMER.rstrip(".")))
    return join(element("li", said, class_=class_ or None) for class_, said in found)


def _tiles(summary: Summary) -> Html:
    return join(
        element("li", element("b", one.figure), element("span", one.what),
                element("small", one.note) if one.note else None)
        for one in tiles(summary)
    )  # fmt: skip


def _notes(summary: Summary) -> Html:
    parts = [element("p", " · ".join(blocks.described(summary.run)), class_="machine")]
    if summary.verdict.others:
        parts.append(element("dl", *(
            join((element("dt", setting.title), element("dd", sentence)))
            for setting, sentence in summary.verdict.others
        ), class_="others"))  # fmt: skip
    said = [*summary.verdict.notes, *(clean(note) for note in summary.run.notes)]
    parts.append(element("ul", *(element("li", one) for one in said), class_="footnotes"))
    return join(parts)


def _glance(summary: Summary) -> Html | str:
    if not summary.rows:
        return element("p", "No experiment has a result.", class_="missing")
    return blocks.glance_table(summary)
