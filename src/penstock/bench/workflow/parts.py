"""What a run is put together from that is not its own: how data sets, experiments and reports are
made. A test gives others; everybody else takes these.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def _report(run: Path) -> None:
    from penstock.bench import reporting  # when it is wanted: charts take long to import

    reporting.summarize(run)
    reporting.write(run)


@dataclass(frozen=True)
class Parts:
    """`dataset_command` gets SETTINGS.json (see workflow/making.py), `experiment_command` a
    CONFIG.json (see plans/model.py)."""

    dataset_command: Sequence[str] = (sys.executable, "-Pm", "penstock.bench.workflow.making")
    experiment_command: Sequence[str] = (sys.executable, "-Pm", "penstock.bench.experiments")
    report: Callable[[Path], None] = _report
