"""What a run is put together from that is not its own: the local store, and how data sets,
experiments and reports are made. A test gives others; everybody else takes these.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.s3server import S3Server, reclaim_space, serve_s3
from penstock.bench.workspace import Workspace


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
    serve: Callable[[Workspace], AbstractContextManager[S3Server]] = serve_s3
    reclaim: Callable[[Workspace], None] = reclaim_space  # after objects were removed
