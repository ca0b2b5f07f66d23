"""The runs of this machine, one file each in STATE/bench; removes what a killed run left.

An entry is written before anything is made, so that the next run or `penstock bench clean` finds
everything that a killed runner left. It holds names only, no keys. A run that is still alive is
left alone. What cannot be removed now (a store that does not answer) stays in the registry, so that
the next attempt finds it. Safe from any thread: each run writes its own file only.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from penstock import procfs
from penstock.bench import measure
from penstock.bench.s3server import kill_left_server
from penstock.bench.workflow import remote
from penstock.bench.workflow.engine import mark_interrupted, write_json
from penstock.bench.workflow.remote import Place
from penstock.bench.workspace import MARK, PREFIX, end_below, unmount_below
from penstock.errors import PenstockError
from penstock.jobs.cgroups import groups_in, remove_folders
from penstock.jobs.processes import clear
from penstock.paths import state_dir

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Entry:
    run: str  # its id: the name of its folder of results
    folder: str  # of everything that it starts, mounts or makes here; see bench/workspace.py
    results: str
    pid: int
    started: str  # of the runner: boot and ticks, since ids come again
    remote: tuple[Place, ...] = ()  # folders of its own in object stores

    @property
    def alive(self) -> bool:
        return _started(self.pid) == self.started

    def with_remote(self, *places: Place) -> "Entry":
        new = (one for one in places if one not in self.remote)
        return replace(self, remote=(*self.remote, *new))

    def without_remote(self, gone: Place) -> "Entry":
        return replace(self, remote=tuple(one for one in self.remote if one != gone))


@dataclass(frozen=True, slots=True)
class Unreadable:
    path: Path
    why: str


def own_entry(run: str, folder: Path, results: Path) -> Entry:
    pid = os.getpid()
    return Entry(run, str(folder), str(results), pid, _started(pid) or "")


def write(entry: Entry) -> None:
    path = _path(entry.run)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(path, asdict(entry), mode=0o600)


def claim(entry: Entry) -> bool:
    """Write the entry unless another run has its name; return whether it was written. If two
    runs claim a name at once, one succeeds."""
    path = _path(entry.run)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{entry.run}.{entry.pid}")
    write_json(beside, asdict(entry), mode=0o600)
    try:
        os.link(beside, path)  # whole, or not at all: a clean may look at any moment
    except FileExistsError:
        return False
    finally:
        beside.unlink()
    return True


def find(run: str) -> Entry | None:
    found = (one for one in entries() if isinstance(one, Entry))
    return next((one for one in found if one.run == run), None)


def forget(entry: Entry) -> None:
    _path(entry.run).unlink(missing_ok=True)


def entries() -> list[Entry | Unreadable]:
    found: list[Entry | Unreadable] = []
    for path in sorted((state_dir() / "bench").glob("*.json")):
        try:
            value = cast("dict[str, Any]", json.loads(path.read_text()))
            value["remote"] = tuple(Place(**one) for one in value["remote"])
            found.append(Entry(**value))
        except FileNotFoundError:
            continue  # its run has just ended
        except (ValueError, TypeError, KeyError) as error:
            found.append(Unreadable(path, str(error)))
    return found


def _path(run: str) -> Path:
    return state_dir() / "bench" / f"{run}.json"


def _started(pid: int) -> str | None:
    """Return when a process was started: no other process has its id and this."""
    fields = procfs.stat(pid)
    if not fields or fields[procfs.STATE] == "Z":  # killed, and its parent has not looked yet
        return None
    return f"{_BOOT_ID.read_text().strip()} {fields[procfs.START_TIME]}"


_CGROUPS = Path("/sys/fs/cgroup")
# Only what a job of ours was given: a runner that was started within some cgroup has processes
# there too, and that one is not ours.
_OUR_CGROUP = re.compile(r"/penstock[^/]*(?:/|$)")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The cleaning of one run. `left` has the reason why something of it is still there."""

    run: str
    what: str
    alive: bool = False
    left: str | None = None
    hint: str | None = None


def clean(*, wanted: str | None = None) -> list[Cleaned]:
    """Clean all runs that have ended, or the one that is named."""
    found: list[Cleaned] = []
    for entry in entries():
        if isinstance(entry, Unreadable):
            found.append(
                Cleaned(
                    entry.path.stem,
                    "",
                    left=f"{entry.path}: unreadable: {entry.why}",
                    hint="remove that file; `penstock bench clean` cannot know what it stood for",
                )
            )
        elif wanted is None or entry.run == wanted:
            found.append(_clean_entry(entry))
    return found


def _clean_entry(entry: Entry) -> Cleaned:
    if entry.alive:
        return Cleaned(entry.run, f"is running, as process {entry.pid}: left alone", alive=True)
    try:
        removed = sweep(Path(entry.folder))
    except OSError as error:
        hint = f"remove {entry.folder} yourself"
        return Cleaned(entry.run, "not removed", left=str(error), hint=hint)
    objects, left, hint = 0, None, None
    for place in entry.remote:
        try:
            objects += remote.remove(place)
        except PenstockError as error:
            left, hint = f"{place}: {error}", error.hint
            continue
        entry = entry.without_remote(place)
        write(entry)
    if left is None:
        forget(entry)
    if objects:
        removed.append(f"{objects:,} objects")
    what = f"removed {', '.join(removed) or 'its entry'}"
    try:
        mark_interrupted(Path(entry.results))
    except (OSError, ValueError) as error:  # its results are its owner's: they stay as they are
        what += f"; {entry.results} still shows it as running: {error}"
    return Cleaned(entry.run, what, left=left, hint=hint)


def sweep(folder: Path) -> list[str]:
    """End, unmount and remove everything of a run's folder; return what there was."""
    if not folder.name.startswith(PREFIX):
        raise ValueError(f"{folder} is no folder of a benchmark")
    mounts = measure.mounts_below(folder)
    pids = measure.marked_processes(f"{MARK}={folder}/")
    cgroups = _cgroups_of(pids)
    unmount_below(folder)
    kill_left_server(folder)  # asked to end, it would take 15 s
    end_below(folder)
    cgroups += [one for one in _cgroups_of_jobs(folder) if one not in cgroups]
    _clear_jobs(folder)
    remove_folders(cgroups)
    found = [
        f"{len(things):,} {many if len(things) > 1 else one}"
        for one, many, things in (
            ("mount", "mounts", mounts),
            ("process", "processes", pids),
            ("cgroup", "cgroups", cgroups),
        )
        if things
    ]
    if folder.exists():
        found.append(str(folder))
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):  # another cleans here, too
            shutil.rmtree(folder)
    return found


def _cgroups_of(pids: Iterable[int]) -> list[Path]:
    """Return the cgroup folders of these processes that are ours, deepest first."""
    found: set[Path] = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            number, controllers, path = line.split(":", 2)
            if not _OUR_CGROUP.search(path):
                continue
            for root in ("", "unified") if number == "0" else (controllers,):
                folder = _CGROUPS / root / path.lstrip("/")
                while _OUR_CGROUP.search(f"/{folder.relative_to(_CGROUPS)}"):
                    found.add(folder)
                    folder = folder.parent
    return sorted((one for one in found if one.is_dir()), reverse=True)


def _clear_jobs(folder: Path) -> None:
    """Remove what jobs have made outside of the folder: scratch space and containers. Their keepers
    would have removed it, but take longer to end their jobs than `end_below` waits for them."""
    for path in folder.glob("**/jobs/*/attempt.json"):
        try:
            clear(path.parent.name, json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError):
            continue  # not a whole record: nothing can be known from it


def _cgroups_of_jobs(folder: Path) -> list[Path]:
    """Return the cgroups of jobs whose processes are gone, found by the jobs' state in the folder.
    Nothing may be mounted there any more."""
    uids = {path.name for path in folder.glob("**/jobs/*") if path.is_dir()}
    wanted = {f"penstock-job-{uid}" for uid in uids}
    # Not by glob, which fails where a folder vanishes meanwhile.
    tops = [
        os.path.join(place, name)
        for place, names, _ in (os.walk(_CGROUPS) if wanted else ())
        for name in names
        if name in wanted
    ]
    return groups_in(tops)
