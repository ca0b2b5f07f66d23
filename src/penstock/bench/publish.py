"""Puts a run's figures into the README: a table and a picture, both from its JSON.

    python -m penstock.bench.publish bench-results/peers.json

So no figure there was ever typed by hand. Measures nothing.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.report import with_version
from penstock.bench.reporting.drawing import Bar, Part, draw_bars, system_look
from penstock.bench.reporting.results import Arm

_NAMES = {
    "native": "native", "penstock": "Penstock", "juicefs": "JuiceFS", "alluxio": "Alluxio",
    "rclone": "rclone mount", "s3fs": "s3fs",
}  # fmt: skip
_BEGIN, _END = "<!-- bench:begin -->", "<!-- bench:end -->"


def main(arguments: Sequence[str]) -> int:
    results = Path(arguments[0] if arguments else "bench-results/peers.json")
    report: dict[str, Any] = json.loads(results.read_text())
    root = Path.cwd()
    (root / "docs" / "images").mkdir(parents=True, exist_ok=True)
    (root / "docs" / "images" / "warm-small-files.svg").write_text(picture(report))
    readme = root / "README.md"
    readme.write_text(insert(readme.read_text(), table(report)))
    return 0


def insert(page: str, text: str) -> str:
    pattern = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{_BEGIN}\n{text}\n{_END}", page)


def table(report: dict[str, Any]) -> str:
    """One line for each system, the states as columns, eight readers.

    CPU is that of the cold epoch of small files, memory the most after any of their epochs.
    """
    machine = report["machine"]
    settings = report["settings"]
    lines = [
        f"{settings['files']:,} files of 110 KiB, shuffled, and {settings['large']} of 128 MiB; "
        f"8 readers; {machine['cores']} cores, Linux {machine['kernel'].split('-')[0]}, cache on "
        f"{settings['medium']}:",
        "",
        "| files/s, MB/s | cold | cached | warm | of native | large, warm | of native "
        "| CPU s/GB, cold | memory, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm, name in _NAMES.items():
        warm = _row(report, arm, "small", "warm")
        if warm is None:
            continue
        large = _row(report, arm, "large", "warm")
        cold = _row(report, arm, "small", "cold")
        cached = _row(report, arm, "small", "cached")
        held = max(row["memory_mb"] for row in (cold, cached, warm) if row is not None)
        cells = [
            _figure(cold, "files_per_s"),
            _figure(cached, "files_per_s"),
            _figure(warm, "files_per_s"),
            _ratio(warm, arm),
            _figure(large, "mb_per_s"),
            _ratio(large, arm),
            f"{cold['cpu_s_per_gb']:.2f}" if cold is not None else "–",
            f"{held:,.0f}" if held else "–",
        ]
        title = f"**{name}**" if arm == "penstock" else name
        version = report["versions"].get(arm, "")
        lines.append(f"| {with_version(title, version)} | {' | '.join(cells)} |")
    lines += [
        "",
        "Shares are medians of neighbouring measurements, not quotients of the columns. CPU and "
        "memory are those of all processes of a system, without the readers and the S3 server.",
    ]
    return "\n".join(lines)


def picture(report: dict[str, Any]) -> str:
    """Bars of files per second, warm, eight readers."""
    bars: list[Bar] = []
    for arm, name in _NAMES.items():
        if (row := _row(report, arm, "small", "warm")) is not None:
            part = Part(row["files_per_s"], system_look(Arm(arm, name, arm, state="warm")))
            bars.append(Bar(name, f"{part.value:,.0f}", (part,)))
    title = "Second epoch of small files: files per second, 8 readers"
    return draw_bars(bars, label=title, title=title, width=700.0).standalone()


def _row(report: dict[str, Any], arm: str, dataset: str, state: str) -> dict[str, Any] | None:
    found = [
        row
        for row in report["rows"]
        if (row["arm"], row["dataset"], row["state"], row["readers"]) == (arm, dataset, state, 8)
    ]
    return found[0] if found else None


def _figure(row: dict[str, Any] | None, key: str) -> str:
    return f"{row[key]:,.0f}" if row is not None else "–"


def _ratio(row: dict[str, Any] | None, arm: str) -> str:
    if row is None or row["native_ratio"] is None or arm == "native":
        return ""
    return (
        f"{row['native_ratio']:.2f}" if row["native_ratio"] >= 0.1 else f"{row['native_ratio']:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
