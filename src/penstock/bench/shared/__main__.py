"""Measure the shared tier on several nodes, and print a table; needs root.

    python -m penstock.bench.shared --set small_files=4000 --set readers=16

stdout is the table, and its last line the folder of results, with report.md and result.json.
Everything that a run starts, mounts or makes is gone when it ends; after a kill -9,
`penstock bench clean` or the next run removes it.
"""

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from penstock.bench import measure
from penstock.bench.shared.cluster import Settings, build
from penstock.bench.shared.measuring import groups
from penstock.bench.shared.network import enter_hub
from penstock.bench.shared.report import Row, to_markdown, write
from penstock.bench.workflow import registry
from penstock.bench.workspace import PREFIX, SHARED_MEMORY, BenchError, Workspace, find_program
from penstock.errors import PenstockError, UsageError

_INTERRUPTED = 130
_PROGRAMS = (
    ("memcached", "memcached"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
)


def parse_settings(words: Sequence[str]) -> Settings:
    """Return the settings with these changes, each NAME=VALUE; raise UsageError."""
    settings, known = Settings(), {field.name: field for field in fields(Settings)}
    for word in words:
        name, _, text = word.partition("=")
        if (field := known.get(name)) is None:
            raise UsageError(f"--set {word}: no such setting", hint=f"one of {', '.join(known)}")
        whole = isinstance(field.default, int)
        try:
            settings = replace(settings, **{name: int(text) if whole else float(text)})
        except ValueError as error:
            what = "a whole number" if whole else "a number"
            raise UsageError(f"--set {word}: {text!r} is not {what}") from error
    settings.check()
    return settings


def run(settings: Settings, out: Path, medium: Path) -> list[Row]:
    """Measure everything, in a folder of the medium; write the results after each group."""
    name = f"shared-{time.strftime('%Y%m%d-%H%M%S')}"
    results = out.absolute() / name
    folder = medium.resolve() / f"{PREFIX}{secrets.token_hex(4)}"
    for cleaned in registry.clean():
        if not cleaned.alive:
            _say(f"the run {cleaned.run} was killed: {cleaned.what}")
    entry = registry.own_entry(name, folder, results)
    if not registry.claim(entry):
        raise UsageError(f"{results}: another run has just made it", hint="run it again")
    try:
        results.mkdir(parents=True)
        enter_hub()
        with Workspace(medium, name=folder.name) as workspace:
            rows = _measure(workspace, settings, results)
    finally:
        registry.forget(entry)
    print(to_markdown(rows, settings, measure.machine()))
    print(results)
    return rows


def _measure(workspace: Workspace, settings: Settings, results: Path) -> list[Row]:
    rows: list[Row] = []
    machine = measure.machine()
    with measure.memory_kept_in_guest(), build(workspace, settings) as cluster:
        for title, group in groups(cluster):
            start_s = time.monotonic()
            found = group()
            rows += found
            write(results, rows, settings, machine)
            missed = sum(row.met is False for row in found)
            _say(
                f"{title}: {time.monotonic() - start_s:.0f} s"
                + (f", {missed} of {len(found)} rows miss their target" if missed else "")
            )
    return rows


def _check() -> None:
    if os.geteuid() != 0:
        raise UsageError("network namespaces and dropping pages need root", hint="run it as root")
    for program, package in _PROGRAMS:
        try:
            find_program(program)
        except BenchError as error:
            hint = f"install the system's package {package}"
            raise BenchError(str(error), hint=hint) from error
    find_program("weed")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m penstock.bench.shared",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changes")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), metavar="DIR")
    parser.add_argument("--medium", type=Path, default=SHARED_MEMORY, metavar="DIR")
    options = parser.parse_args(words)
    try:
        settings = parse_settings(options.changes)
        _check()
        run(settings, options.out, options.medium)
    except PenstockError as error:
        _say(f"{error}\nhint: {error.hint}" if error.hint else str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
