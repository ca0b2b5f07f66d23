"""report.md: what a README takes in. The verdict, one table, the command that remakes it. Pure."""

import re

from penstock.bench.reporting.blocks import described
from penstock.bench.reporting.glance import Cell, glance
from penstock.bench.reporting.markup import clean
from penstock.bench.reporting.reading import sequence, text
from penstock.bench.reporting.summary import DISCLAIMER, METHOD, Summary
from penstock.store.secrets import redact

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def markdown(summary: Summary) -> str:
    run, verdict = summary.run, summary.verdict
    lines = [f"**{plain(verdict.sentence)}**", ""]
    if not run.ended:
        total = len(run.results) + len(run.unfinished)
        lines += [f"This run did not end: {len(run.results)} of {total} experiments have a "
                  "result.", ""]  # fmt: skip
    if summary.rows:
        lines += [*_table(summary), ""]
    for setting, sentence in verdict.others:
        lines.append(f"- {plain(setting.title)}: {plain(sentence)}")
    lines += ["", *_left_out(summary)] if verdict.others else _left_out(summary)
    lines.append(" ".join(plain(one) for one in (
        *verdict.notes, METHOD, *(f"{part}." for part in ["; ".join(described(run))] if part),
        DISCLAIMER,
    )))  # fmt: skip
    commands = [redact(text(one)) for one in sequence(run.environment.get("commands"))]
    lines += ["", "Made again by:", ""]
    lines += [f"    {clean(' '.join(one.split()))}"
              for one in commands or ["penstock bench run plan.yaml"]]  # fmt: skip
    return "\n".join(lines) + "\n"


def plain(said: str) -> str:
    """Words that Markdown takes as words, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(said).split()))


def _table(summary: Summary) -> list[str]:
    settings, lines = glance(summary)
    titles = [f"{plain(one.title)}<br>{plain(one.details)}" for one in settings]
    return [
        f"| read through | {' | '.join(titles)} |",
        f"| --- |{' ---: |' * len(settings)}",
        *(
            f"| {_name(line.arm.label, line.arm.system)} | {' | '.join(map(_cell, line.cells))} |"
            for line in lines
        ),
    ]


def _name(label: str, system: str) -> str:
    return f"**{plain(label)}**" if system == "penstock" else plain(label)


def _cell(cell: Cell) -> str:
    said = f"~~{plain(cell.text)}~~" if cell.struck else plain(cell.text)
    return f"{said} ({plain(cell.note)})" if cell.note else said


def _left_out(summary: Summary) -> list[str]:
    found = summary.run.left_out
    if not found:
        return []
    listed = [f"- ~~{plain(one.id)}~~ {plain(redact(one.why_not))}" for one in found]
    return ["Left out of every figure:", "", *listed, ""]
