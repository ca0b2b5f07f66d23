"""A support bundle: one file with everything needed to find a problem, without secrets.

All its content passes through one redactor. The environment, core files and the data itself are
never included, since no redactor knows their secrets.
"""

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock.daemon.mount_registry import MountNote, all_notes
from penstock.doctor.examination import Report, as_json, as_text
from penstock.doctor.facts.declared import tail
from penstock.doctor.facts.mounts import look_at_given
from penstock.doctor.findings import each_within
from penstock.doctor.redactor import Redactor, redactor_for
from penstock.errors import UsageError
from penstock.jobs.job_folder import instance_logs, job_folder
from penstock.mounttable import mount_table
from penstock.paths import state_dir
from penstock.reconcile import live_status
from penstock.reconcile.snapshot import JOBS, Stored
from penstock.reconcile.state import State
from penstock.release import __version__
from penstock.settings import encode

_LOG_BYTES = 2 * 1024 * 1024
# Output of jobs: the end of each instance's log, newest jobs first.
_PRINTED_BYTES, _ALL_PRINTED_BYTES = 64 * 1024, 16 * 1024 * 1024
_SETTINGS_WITHIN_S = 5.0
_MACHINE = (
    "/proc/version",
    "/proc/meminfo",
    "/proc/pressure/memory",
    "/proc/pressure/io",
    "/proc/pressure/cpu",
    "/proc/loadavg",
    "/etc/os-release",
    "/etc/fuse.conf",
)
_LIBRARIES = ("obstore", "botocore", "xxhash", "click", "pydantic", "pyyaml", "cryptography")


def write_bundle(report: Report, file: Path) -> list[str]:
    """Write the bundle, readable by its user only; return the names of its members."""
    if file.exists():
        raise UsageError(f"{file} exists already", hint="give another name, or remove it")
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    folder = file.name.split(".")[0]
    names: list[str] = []
    try:
        descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with (
                os.fdopen(descriptor, "wb") as out,
                tarfile.open(fileobj=out, mode="w:gz") as archive,
            ):
                for name, text in _contents(report):
                    names.append(name)
                    _put(archive, f"{folder}/{name}", text)
            fresh.rename(file)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", hint="give another --bundle") from error
    return names


def _put(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", "replace")
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
    archive.addfile(info, io.BytesIO(data))


def _contents(report: Report) -> Iterator[tuple[str, str]]:
    notes = all_notes()
    redactor = _redactor(report, notes)
    yield "report.json", _json(redactor.value(as_json(report)))
    yield "report.txt", redactor.text("\n".join([*as_text(report, verbose=True), ""]))
    yield "versions.json", _json(_versions())
    yield "machine.txt", redactor.text(_machine())
    if report.state is not None:
        yield from _declared(report.state, redactor)
    for note in notes:
        name = note.mountpoint.strip("/").replace("/", "-")
        yield f"mounts/{name}/note.json", _json(redactor.value(asdict(note)))
    for mount in report.mounts:
        name = mount.mountpoint.strip("/").replace("/", "-")
        yield f"mounts/{name}/stats.json", _json(redactor.value(mount.stats or mount.no_answer))
        if mount.given is not None:
            settings = encode(mount.given.settings)
            for part in settings["parts"]:
                part["store"].pop("keys", None)
            yield f"mounts/{name}/settings.json", _json(redactor.value(settings))
    for log in sorted((state_dir() / "logs").glob("*.log")):
        yield f"logs/{log.name}", redactor.text(tail(log, _LOG_BYTES))


def _redactor(report: Report, notes: list[MountNote]) -> Redactor:
    """Return a redactor with the secrets of every mount: a bundle has the logs of all of them."""
    looks = {note.mountpoint: partial(look_at_given, Path(note.mountpoint)) for note in notes}
    given = [one for one in each_within(_SETTINGS_WITHIN_S, looks).values() if one is not None]
    return redactor_for(
        report.state, [one.settings for one in given], [one.environment for one in given]
    )


def _declared(state: State, redactor: Redactor) -> Iterator[tuple[str, str]]:
    import yaml

    stored = state.all()
    shown = redactor.value(live_status.show(stored))
    yield "resources.yaml", yaml.safe_dump_all(shown, sort_keys=False, allow_unicode=True)
    events = {str(one.key): [asdict(event) for event in state.events(one.uid)] for one in stored}
    yield "events.json", _json(redactor.value(events))
    for one in stored:
        work = state.folder / "operations" / one.uid / "log"
        if one.key.kind in JOBS:
            work = job_folder(state.folder, one.uid) / "supervisor.log"
        if text := tail(work, _LOG_BYTES):
            key = one.key
            yield f"logs/{key.kind.lower()}-{key.namespace}-{key.name}.log", redactor.text(text)
    yield from _printed(state, [one for one in stored if one.key.kind in JOBS], redactor)


def _printed(state: State, jobs: list[Stored], redactor: Redactor) -> Iterator[tuple[str, str]]:
    left = _ALL_PRINTED_BYTES
    for job in sorted(jobs, key=lambda one: one.created_s, reverse=True):
        for log in instance_logs(job_folder(state.folder, job.uid)):
            if (text := tail(log, _PRINTED_BYTES)) and left >= _PRINTED_BYTES:
                left -= len(text)
                yield f"logs/jobs/{job.key.namespace}/{log.name}", redactor.text(text)


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {"penstock": __version__, "python": sys.version}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _machine() -> str:
    parts = [f"# uname\n{' '.join(platform.uname())}", f"# cpus\n{os.cpu_count()}, {_processor()}"]
    for path in _MACHINE:
        try:
            parts.append(f"# {path}\n{Path(path).read_text().rstrip()}")
        except OSError:
            continue  # not every machine has all of them
    lines = [
        f"{entry.mountpoint} {entry.kind} {entry.source} {entry.device}"
        for entry in mount_table()
        if entry.kind.startswith("fuse") or entry.kind in ("cgroup2", "tmpfs", "overlay")
    ]
    return "\n\n".join([*parts, "# mounts\n" + "\n".join(lines), ""])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
