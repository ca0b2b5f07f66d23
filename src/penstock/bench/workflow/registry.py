"""What runs there are on this machine, and what each has made: one file each in STATE/bench.

Written before anything is made, so that whoever comes after a killed runner finds all of it. It
holds names only, no keys. Safe from any thread: each run writes its own file only.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from penstock.bench.workflow.record import write_json
from penstock.bench.workflow.remote import Place
from penstock.daemon.places import state_dir

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
    """Writes it if no run has its name; says whether. Of two at once, one gets it."""
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
    """When a process was started: nothing else has its id and this."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rsplit(b")", 1)[1].split()
    if state == b"Z":  # killed, and its parent has not looked yet
        return None
    return f"{_BOOT_ID.read_text().strip()} {int(fields[18])}"
