"""The process of one data operation: `python -Pm penstock.operations.main UID`.

The loop takes the operation's lock, then starts this process. Progress goes into the operation's
status. If the process is killed, the loop starts it again.
"""

import logging
import sys
import time
from pathlib import Path
from typing import Any

from penstock.catalog.refresh import catalog_path
from penstock.errors import PenstockError, UsageError
from penstock.fluid.sources import locate
from penstock.fluid.values import Report, Written
from penstock.operations import RUN
from penstock.operations.lifecycle import OperationRunner
from penstock.reconcile.command_environment import named_secret
from penstock.reconcile.conditions import BOUND, COMPLETE, FAILED
from penstock.reconcile.loop_control import wake_loop
from penstock.reconcile.mount_plan import plan_of
from penstock.reconcile.resource_process import enter_resource_process
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.settings import MountSettings, Part
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import model_of
from penstock.store.redaction import redact
from penstock.units import format_size

log = logging.getLogger("penstock.operations.main")  # this module runs as __main__

Json = dict[str, Any]
_REPORT_S = 0.5
_LOG_PROGRESS_S = 10.0


class StateWork:
    """The Work of an operation in the state of this machine."""

    def __init__(self, state: State, operation: Stored, folder: Path) -> None:
        self._state = state
        self._operation = operation
        self.folder = folder
        self.resource = model_of(operation.manifest, state.secrets(operation))
        self._reported_s = 0.0
        self._logged_s = 0.0
        self._progress: Json | None = None
        self._settings: dict[tuple[str, str], MountSettings] = {}

    def mountpoint(self, name: str, namespace: str) -> Path:
        dataset = self._dataset(name, namespace)
        if dataset.status.get("phase") != BOUND:
            raise UsageError(
                f"data set {namespace}/{name} is not bound",
                hint=f"penstock describe dataset {name} -n {namespace}",
            )
        return Path(dataset.note["mountpoint"])

    def parts(self, name: str, namespace: str) -> tuple[Part, ...]:
        return self._settings_of(name, namespace).parts

    def external(self, uri: str, options: dict[str, str]) -> Part:
        written = Written.at("options", options)
        place = locate(
            uri,
            written,
            "externalStorage",
            Report(),
            defaults=Written(),
            read_file=lambda name: Path(name).read_text(),
            is_mount_option=lambda _name: False,
        )
        return Part("", place.source, place.store)

    def catalog(self, name: str, namespace: str) -> Path:
        catalog = self._settings_of(name, namespace).catalog
        assert catalog is not None
        return catalog_path(self._state.folder, catalog)

    def secret(self, namespace: str, name: str, key: str) -> str:
        return named_secret(self._state, namespace, name, key)

    def report(self, progress: Json) -> None:
        self._progress = progress
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            self._state.record(self._operation.uid, status={"progress": progress})
        if now_s - self._logged_s >= _LOG_PROGRESS_S:
            self._logged_s = now_s
            log.info("%s", _in_words(progress))

    def flush_report(self) -> None:
        """Write the last report, which report() may have skipped."""
        if self._progress is not None:
            self._state.record(self._operation.uid, status={"progress": self._progress})
            log.info("%s", _in_words(self._progress))

    def add_event(self, reason: str, message: str) -> None:
        self._state.add_event(self._operation.uid, reason, redact(message))

    def _settings_of(self, name: str, namespace: str) -> MountSettings:
        if (settings := self._settings.get((namespace, name))) is not None:
            return settings
        snapshot = self._state.snapshot()
        pair = snapshot.pair(namespace, name)
        dataset = self._dataset(name, namespace)
        runtime = pair.serving_runtime
        if runtime is None:
            raise UsageError(f"data set {namespace}/{name} has no runtime")
        settings = plan_of(self._state, snapshot, dataset, runtime).settings
        self._settings[namespace, name] = settings
        return settings

    def _dataset(self, name: str, namespace: str) -> Stored:
        found = self._state.find(ResourceKey("Dataset", namespace, name))
        if found is None:
            raise UsageError(f"there is no data set {namespace}/{name}")
        return found


def _in_words(progress: Json) -> str:
    """`copying: 12 of 60 files, 1.2 MiB of 6.0 MiB`; other values as they are."""
    left = dict(progress)
    words = [str(left.pop("phase", "running"))]
    if "files" in left:
        of = f" of {left.pop('ofFiles'):,}" if "ofFiles" in left else ""
        words.append(f"{left.pop('files'):,}{of} files")
    if "bytes" in left:
        of = f" of {format_size(left.pop('ofBytes'))}" if "ofBytes" in left else ""
        words.append(f"{format_size(left.pop('bytes'))}{of}")
    words += [f"{name} {value}" for name, value in left.items()]
    return f"{words[0]}: {', '.join(words[1:])}" if words[1:] else words[0]


def main() -> int:
    if (started := enter_resource_process()) is None:
        return 0
    state, operation = started
    runner = OperationRunner(state)
    work = StateWork(state, operation, runner.folder(operation.uid))
    log.info("%s begins", operation.key)
    try:
        infos = RUN[operation.key.kind](work)
    except PenstockError as error:
        log.warning("%s: %s", operation.key, error)
        message = redact(f"{error}" + (f" (hint: {error.hint})" if error.hint else ""))
        failure = {"what": redact(str(error)), "hint": error.hint, "exit_code": error.exit_code}
        runner.finish(operation, FAILED, type(error).__name__, message, failure=failure)
    except Exception as error:  # a bug must show in the status, not only in the log
        log.exception("%s", operation.key)
        runner.finish(operation, FAILED, "Bug", redact(f"{type(error).__name__}: {error}"))
    else:
        work.flush_report()
        log.info("%s is complete", operation.key)
        reason = f"{operation.key.kind}Complete"
        runner.finish(operation, COMPLETE, reason, "done", infos=infos)
    wake_loop(state.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
