"""What `penstock plan` shows a person. Apart, because rich takes 28 ms to import."""

from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.units import format_bit_rate, format_duration, format_size

_COLUMNS = ("WAY", "EPOCH", "BUSY", "STALL", "TIME", "FIRST BATCH", "HITS", "FROM STORE", "GETS")
_LEAST_WIDTH = 100  # in a pipe or a file there is no terminal to be narrow


def show(found: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _LEAST_WIDTH)
    console.print(
        f"{found['files']:,} files, {format_size(found['bytes'])}; "
        f"the accelerator takes {format_bit_rate(found['demand_bytes_per_s'])}; "
        f"the cache holds {_share(found)}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print()
    console.print(_table(found["ways"]))
    console.print()
    for sentence in found["advice"]:
        console.print(sentence, highlight=False, soft_wrap=True)


def _share(found: dict[str, Any]) -> str:
    share = min(1.0, found["cache_bytes"] / found["bytes"]) if found["bytes"] else 1.0
    return "all of it" if share == 1 else f"{share:.0%} of it" if share else "nothing"


def _table(ways: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "WAY" else "right", no_wrap=True)
    for way in ways:
        name = way["way"]
        if "warm_up" in way:
            loading = way["warm_up"]
            table.add_row(
                name, "before", "-", "-", _time(loading["whole_s"]), "-", "-",
                format_size(loading["store_bytes"]), f"{loading['gets']:,}",
            )  # fmt: skip
            name = ""
        for epoch in way["epochs"]:
            table.add_row(
                name, _numbers(epoch), f"{epoch['busy']:.0%}", _time(epoch["stall_s"]),
                _time(epoch["whole_s"]), _time(epoch["first_batch_s"]),
                f"{epoch['hit_share']:.0%}", format_size(epoch["store_bytes"]),
                f"{epoch['gets']:,}",
            )  # fmt: skip
            name = ""
        table.add_row("", "all", "", "", _time(way["whole_s"]), "", "", "", "", end_section=True)
    return table


def _numbers(epoch: dict[str, Any]) -> str:
    first, last = epoch["number"], epoch["until"]
    return str(first) if first == last else f"{first} to {last}"


def _time(seconds: float) -> str:
    """A first batch may take milliseconds, an epoch hours."""
    if seconds < 0.0005:
        return "0 s"
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)
