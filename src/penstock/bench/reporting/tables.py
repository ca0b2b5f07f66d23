"""Tables as values, and how a terminal and Markdown show them; a page does it in its template.

Names of arms and messages of programs come from outside: what no document may hold is replaced.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")
# Words that conclude a line.
_STYLES = {"met": "green", "missed": "bold red", "faster": "green", "slower": "bold red"}


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text. The columns `texts` are aligned to the left, and the others, which hold
    figures, to the right. The lines `ours` stand out."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Collection[int] = (0, 1)
    title: str = ""
    ours: Collection[int] = ()


def clean(text: str) -> str:
    """Replace what no page may hold: control characters, halves of surrogate pairs, and marks
    that turn the direction of writing, with which a name could reorder the figures beside it."""
    return _UNWANTED.sub("\ufffd", text)


def plain(words: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(words).split()))


def markdown(table: Table) -> str:
    rules = ["---" if place in table.texts else "---:" for place in range(len(table.head))]
    rows = [
        [f"**{cell}**" if number in table.ours else cell for cell in map(plain, row)]
        for number, row in enumerate(table.rows)
    ]
    lines = [table.head, rules, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def output_console(width: int = 200) -> Console:
    """Return standard output. A pipe has no width, and a cut table is no use in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def print_tables(tables: Iterable[Table], console: Console) -> None:
    """Print tables; a name that several lines begin with stands in the first of them."""
    for table in tables:
        shown = RichTable(
            title=clean(table.title) or None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            title_style="bold",
        )
        for place, name in enumerate(table.head):
            justify = "left" if place in table.texts else "right"
            shown.add_column(name, justify=justify, no_wrap=place in table.texts)
        before = None
        for number, row in enumerate(table.rows):
            cells = [Text(clean(cell), _STYLES.get(cell, "")) for cell in row]
            if 1 in table.texts and row[0] == before:
                cells[0] = Text()
            before = row[0]
            shown.add_row(*cells, style="bold" if number in table.ours else None)
        console.print(shown)
