"""The note of a member that runs here: who runs it, with which options, and since when.

The lock beside the note, not a process id, tells whether the member's supervisor runs. The command
that starts a member takes the lock and passes it on, so that two can never run on one port.
"""

import json
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock import file_locks, procfs
from penstock.cache.members import Address
from penstock.member.options import MemberOptions, decode
from penstock.paths import logs_dir, open_private, shared_dir

SUPERVISOR = "penstock.member.supervisor"


@dataclass(frozen=True, slots=True)
class MemberNote:
    options: MemberOptions
    owner: str | None = None  # the data set that it was started for; None: a person started it
    log: str | None = None  # None: it runs in the foreground
    state: str = "starting"  # then running; or waiting, before the next start
    pid: int = 0  # of the supervisor
    member_pid: int | None = None  # of memcached
    started_s: float = 0.0
    restarts: int = 0
    last_end: str | None = None  # when and how memcached ended last

    @property
    def port(self) -> int:
        return self.options.port

    @property
    def address(self) -> str:
        """What a mount of this machine reaches it by."""
        return str(Address(reachable_host(self.options), self.port))

    @property
    def runs(self) -> bool:
        """Whether its supervisor runs."""
        return file_locks.is_held(lock_path(self.port))

    @property
    def supervisor_pid(self) -> int | None:
        """The process of its supervisor, if that is still the same process."""
        words = procfs.command_line(self.pid) if self.pid and self.runs else []
        ours = SUPERVISOR.encode() in words and os.fsencode(note_path(self.port)) in words
        return self.pid if ours else None


def reachable_host(options: MemberOptions) -> str:
    if not options.listens_everywhere:
        return options.listen
    return "::1" if ":" in options.listen else "127.0.0.1"


def advice(note: MemberNote) -> list[str]:
    """Return the lines that tell a person how mounts use the member."""
    everywhere = note.options.listens_everywhere
    address = str(Address(socket.gethostname(), note.port)) if everywhere else note.address
    lines = [f"give it to mounts: --shared memcached://{address}"]
    if not note.options.is_local:
        lines.append(
            "warning: memcached has no access control: give all mounts the same --shared-key FILE, "
            "and let only your machines reach the port"
        )
    return lines


def note_path(port: int) -> Path:
    return shared_dir() / f"{port}.json"


def lock_path(port: int) -> Path:
    return shared_dir() / f"{port}.lock"


def log_path(port: int) -> Path:
    return logs_dir() / f"shared-{port}.log"


def read_note(path: Path) -> MemberNote | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return replace(MemberNote(**found), options=decode(found["options"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None  # gone, or written by another release


def write_note(path: Path, note: MemberNote) -> None:
    """Replace the note at once: a reader sees the old one or the new one, whole."""
    values = {name: getattr(note, name) for name in MemberNote.__slots__}
    text = json.dumps({**values, "options": note.options.encode()})
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(fresh, "x", opener=open_private) as file:
        file.write(text)
    fresh.replace(path)


def all_notes() -> list[MemberNote]:
    """Return the members that were started here and not stopped, by port."""
    found = (read_note(path) for path in shared_dir().glob("*.json"))
    return sorted((note for note in found if note is not None), key=lambda note: note.port)
