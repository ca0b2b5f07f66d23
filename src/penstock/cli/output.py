"""What commands print: data on stdout; messages, errors and progress on stderr."""

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import click

from penstock.api.tables import aligned, table
from penstock.units import counted

Json = dict[str, Any]


def notify(line: str) -> None:
    """Print a line for people, on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_error(what: str, hint: str | None, exit_code: int) -> int:
    notify(f"penstock: {what}")
    if hint:
        notify(f"hint: {hint}")
    return exit_code


def as_text(value: Any, form: str) -> str:
    """`value` as `json` or `yaml`."""
    if form == "json":
        return json.dumps(value, indent=2)
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip("\n")


def print_objects(found: Sequence[Json], kind: str, output: str, *, namespaces: bool) -> None:
    """Print objects as `-o` asks for them, in the forms of kubectl."""
    if output in ("yaml", "json"):
        click.echo(as_text({"apiVersion": "v1", "kind": "List", "items": list(found)}, output))
    elif output == "name":
        for shown in found:
            click.echo(f"{shown['kind'].lower()}/{shown['metadata']['name']}")
    else:
        for line in aligned(table(found, kind, wide=output == "wide", namespaces=namespaces)):
            click.echo(line)


class StatusLine:
    """One line that is kept current on a terminal. Draws nothing elsewhere, and nothing while the
    command has run for less than half a second."""

    _QUIET_S = 0.5

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._drawn = ""

    def draw(self, line: str) -> None:
        if not sys.stderr.isatty() or time.monotonic() - self._began_s < self._QUIET_S:
            return
        if line != self._drawn:
            self._drawn = line
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            self._drawn = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()


class Listing(StatusLine):
    """`listing s3://bucket: 120,000 objects`."""

    _QUIET_S = 0.3  # a short listing needs no progress

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self._drawn_s = 0.0

    def update(self, count: int, _size_bytes: int) -> None:
        """Called for each page of the listing."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= 0.1:
            self._drawn_s = now_s
            self.draw(f"listing {self._source}: {counted(count, 'object')}")
