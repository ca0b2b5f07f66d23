"""The parts of the page that are no charts: tables of proofs, of the machine, of steps. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.figure import Figure, Key, Missing, Panel, Table
from penstock.bench.reporting.glance import Cell, glance
from penstock.bench.reporting.markup import Html, element, join, link
from penstock.bench.reporting.palette import system_class
from penstock.bench.reporting.reading import mapping, number, sequence, text
from penstock.bench.reporting.results import Result, Run
from penstock.bench.reporting.summary import Summary
from penstock.store.secrets import redact
from penstock.units import format_duration, format_size


def table(found: Table) -> Html:
    head = element("tr", *(_head(name, place, found) for place, name in enumerate(found.head)))
    body = [
        element("tr", *(element("td", cell, class_="n" if place >= found.numbers else None)
                        for place, cell in enumerate(row)))
        for row in found.rows
    ]  # fmt: skip
    return _scrolling(element("thead", head), element("tbody", *body))


def figure(found: Figure | Missing, prefix: str) -> Html:
    if isinstance(found, Missing):
        return element("p", element("b", f"{found.title}: "), f"left out, {found.why}.",
                       class_="missing")  # fmt: skip
    sources = join(part for path in found.sources for part in (element("li", link(path, prefix)),))
    data = element(
        "details",
        element("summary", "Data behind this figure"),
        table(found.table),
        element("details", element("summary", f"Raw files ({len(found.sources)})"),
                element("ul", sources, class_="raw")),
        class_="data",
    )  # fmt: skip
    return element(
        "section",
        element("h2", found.title),
        element("p", found.caption, class_="caption"),
        _legend(found.legend) if found.legend else None,
        element("div", *map(_panel, found.panels), class_=_grid(len(found.panels))),
        data,
        id=found.id,
    )


def glance_table(summary: Summary) -> Html:
    settings, lines = glance(summary)
    head = element(
        "tr", element("th", "read through"),
        *(element("th", one.title, element("small", one.details), class_="n") for one in settings),
    )  # fmt: skip
    body = [
        element("tr", element("th", element("i", class_=f"swatch {system_class(one.arm)}"),
                              one.arm.label, element("small", one.arm.version or None)),
                *map(_cell, one.cells), class_="ours" if one.arm.system == "penstock" else None)
        for one in lines
    ]  # fmt: skip
    return _scrolling(element("thead", head), element("tbody", *body), class_="glance")


def proofs(run: Run, prefix: str) -> Html:
    names = list(dict.fromkeys(proof.name for one in run.results for proof in one.proofs))
    counted: list[tuple[str, ...]] = []
    for name in names:
        found = [proof for one in run.results for proof in one.proofs if proof.name == name]
        failed = [proof for proof in found if not proof.ok]
        counted.append((name, (failed or found)[0].said, str(len(found) - len(failed)),
                        str(len(failed))))  # fmt: skip
    parts: list[Html] = []
    if run.left_out:
        parts.append(element("h3", "Left out of every figure"))
        listed = [_left_out(group, prefix) for group in run.left_out_alike()]
        parts.append(element("ul", *listed, class_="invalid"))
    if run.unfinished:
        listed = ", ".join(run.unfinished)
        parts.append(element("p", element("b", "Without a result: "), listed, class_="unfinished"))
    for why in dict.fromkeys(step.error for step in run.skipped):
        names = ", ".join(step.name for step in run.skipped if step.error == why)
        said = element("b", f"Not run, {why or 'skipped'}: ")
        parts.append(element("p", said, names, class_="unfinished"))
    if counted:
        parts.append(table(Table(("proof", "for example", "held", "failed"), tuple(counted))))
    else:
        parts.append(element("p", "No experiment recorded a proof.", class_="missing"))
    parts.append(_experiments(run, prefix))
    return join(parts)


def environment(run: Run) -> Html:
    found = run.environment
    rows = [
        ("data set", _dataset(run.dataset)),
        ("processor", _processor(found)),
        ("memory", _size(found.get("memory_bytes"))),
        ("kernel", text(found.get("kernel"))),
        ("distribution", text(found.get("distribution"))),
        ("Penstock", text(found.get("penstock"))),
        ("Python", text(found.get("python"))),
        *((name, text(version)) for name, version in mapping(found.get("versions")).items()),
        ("started", text(found.get("started"))),
    ]
    shown = tuple((name, redact(said)) for name, said in rows if said)
    if not shown:
        return element("p", "Not recorded: there is no environment.json.", class_="missing")
    return table(Table(("what", "value"), shown))


def arms(summary: Summary) -> Html:
    known = {row.arm.name: row.arm for row in summary.rows}
    rows = tuple(
        (arm.label, arm.version, arm.state, f"{arm.cache_share:.0%}",
         redact(" ".join([arm.command, *arm.options]).strip()))
        for arm in sorted(known.values(), key=lambda arm: arm.rank)
    )  # fmt: skip
    head = ("arm", "version", "state", "cache", "mounted by")
    return table(Table(head, rows, numbers=9))


def steps(run: Run) -> Html:
    if not run.steps:
        return element("p", "Not recorded: there is no workflow.json.", class_="missing")
    longest = max((step.seconds or 0.0 for step in run.steps), default=0.0) or 1.0
    rows = [
        element(
            "tr",
            element("td", step.name),
            element("td", step.state, class_=f"state {step.state}"),
            element("td", "" if step.attempts is None else str(step.attempts), class_="n"),
            element("td", "–" if step.seconds is None else format_duration(step.seconds),
                    class_="n"),
            element("td", element("span", class_="duration",
                    style=f"width:{(step.seconds or 0.0) / longest * 100:.1f}%"), class_="wide"),
            element("td", redact(step.error)),
        )
        for step in run.steps
    ]  # fmt: skip
    names = ("step", "state", "attempts", "took", "", "said")
    right = ("attempts", "took")
    head = element("tr", *(element("th", n, class_="n" if n in right else None) for n in names))
    return _scrolling(element("thead", head), element("tbody", *rows))


def again(run: Run) -> Html:
    commands = [redact(text(one)) for one in sequence(run.environment.get("commands"))]
    lines = "\n".join(commands or ["penstock bench run plan.yaml"])
    return element("pre", element("code", lines))


def _head(name: str, place: int, found: Table) -> Html:
    return element("th", name, class_="n" if place >= found.numbers else None)


def _scrolling(*parts: Html, class_: str | None = None) -> Html:
    return element("div", element("table", *parts, class_=class_), class_="scroll", tabindex="0")


def _legend(keys: Iterable[Key]) -> Html:
    entries = [
        element("li", _sample(key), key.label)
        for key in keys
    ]  # fmt: skip
    return element("ul", *entries, class_="legend")


def _sample(key: Key) -> Html:
    if not key.line:
        return element("i", class_=f"swatch {key.class_}")
    drawn = element("polyline", points="0,5 30,5", class_=f"line {key.class_}")
    return element("svg", drawn, viewBox="0 0 30 10", class_="sample", aria_hidden="true")


def _grid(count: int) -> str:
    """Two beside each other where three would leave one alone."""
    return "panels two" if count == 1 or (count % 2 == 0 and count % 3) else "panels"


def _panel(found: Panel) -> Html:
    words_above = element("figcaption", found.title, element("small", found.details))
    return element("figure", words_above, found.picture)


def _cell(cell: Cell) -> Html:
    note = element("small", cell.note) if cell.note else None
    if cell.struck:
        return element("td", element("s", cell.text), note, class_="n out")
    return element("td", cell.text, note, class_="n")


def _left_out(group: Sequence[Result], prefix: str) -> Html:
    """Experiments of one arm that are left out for one reason."""
    first = group[0]
    hint = first.failure.hint if first.failure else ""
    count = "1 experiment" if len(group) == 1 else f"{len(group)} experiments"
    raw = element("ul", *(element("li", link(one.raw, prefix)) for one in group), class_="raw")
    return element(
        "li",
        element("s", first.arm.label),
        " ",
        element("b", redact(first.why_not)),
        f" ({hint})" if hint else None,
        element("details", element("summary", count), raw),
    )


def _experiments(run: Run, prefix: str) -> Html:
    names = ("order", "experiment", "arm", "setting", "repeat", "seed", "took", "counts", "proofs")
    right = ("order", "repeat", "seed", "took")
    head = element("tr", *(element("th", n, class_="n" if n in right else None) for n in names))
    rows = [_experiment(one, prefix) for one in run.results]
    return element(
        "details", element("summary", f"All experiments, with their proofs ({len(rows)})"),
        _scrolling(element("thead", head), element("tbody", *rows)), class_="data",
    )  # fmt: skip


def _experiment(one: Result, prefix: str) -> Html:
    said = [
        element("li", f"{'✓' if proof.ok else '✗'} {proof.name}: {proof.said}",
                class_=None if proof.ok else "bad")
        for proof in one.proofs
    ]  # fmt: skip
    return element(
        "tr",
        element("td", str(one.order), class_="n"),
        element("td", link(one.raw, prefix)),
        element("td", one.arm.label),
        element("td", f"{one.workload.name} · {one.shape.name}"),
        element("td", str(one.repeat), class_="n"),
        element("td", "–" if one.seed is None else str(one.seed), class_="n"),
        element("td", "–" if one.seconds is None else words.seconds(one.seconds), class_="n"),
        element("td", "yes" if one.counted else redact(one.why_not)),
        element("td", element("ul", *said, class_="proofs")),
        class_=None if one.counted else "out",
    )


def _dataset(found: Any) -> str:
    files, size = number(found.get("files")), number(found.get("size_bytes"))
    parts = [
        text(found.get("form")),
        "" if files is None else f"{files:,.0f} files",
        "" if size is None else format_size(size),
        f"sha256 {text(found['sha256'])[:16]}" if found.get("sha256") else "",
        f"seed {text(found['seed'])}" if found.get("seed") is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _processor(found: Any) -> str:
    cores = number(found.get("cores"))
    return ", ".join(
        part
        for part in (text(found.get("cpu")), "" if cores is None else f"{cores:.0f} cores")
        if part
    )


def _size(value: Any) -> str:
    found = number(value)
    return "" if found is None else format_size(found)


def described(run: Run) -> Sequence[str]:
    """Machine and data set in a few words, for the line below the verdict."""
    parts = (_dataset(run.dataset), _processor(run.environment),
             _size(run.environment.get("memory_bytes")))  # fmt: skip
    return [part for part in parts if part]
