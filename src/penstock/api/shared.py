"""Members of shared tiers on this machine: start memcached, see how it is, stop it."""

from dataclasses import asdict, dataclass
from typing import Any

from penstock.cache.member_stats import ask_members
from penstock.cache.members import DEFAULT_PORT
from penstock.errors import UsageError
from penstock.member.lifecycle import (
    Started,
    become_member,
    find_member,
    members_here,
    start_member,
    stop_member,
)
from penstock.member.note import MemberNote, advice, reachable_host
from penstock.member.options import LOOPBACK, MemberOptions, parse_options

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartedMember:
    address: str  # HOST:PORT, for mounts of this machine
    fresh: bool  # False: it ran already, with these options
    advice: list[str]  # how mounts use it, and what to beware of


def start(
    memory: str,
    *,
    flash: str | None = None,
    listen: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    threads: int | None = None,
) -> StartedMember:
    """Start a member in the background, and return once it answers. `memory` is like `8GiB`, and
    `flash` like `/nvme:200GiB`. If it runs already with these options, nothing changes."""
    return _told(start_member(_options(memory, flash, listen, port, threads)))


def serve(
    memory: str,
    *,
    flash: str | None = None,
    listen: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    threads: int | None = None,
) -> StartedMember:
    """Become the process that runs the member. Returns only if it runs already."""
    return _told(become_member(_options(memory, flash, listen, port, threads)))


def status(port: int | None = None) -> list[Json]:
    """What the members on this machine hold, as `penstock shared status -o json` prints it."""
    notes = [note for note in members_here() if port in (None, note.port)]
    answers = ask_members([(reachable_host(note.options), note.port) for note in notes])
    return [_shown(note, answer) for note, answer in zip(notes, answers, strict=True)]


def stop(port: int | None = None) -> str | None:
    """Stop the member on that port, or the only one that runs here; return its address, or None if
    there is none."""
    if port is not None:
        note = find_member(port)
    else:
        notes = [note for note in members_here() if note.owner is None]
        if len(notes) > 1:
            ports = ", ".join(str(note.port) for note in notes)
            raise UsageError(
                f"several members run here, on ports {ports}", hint="name one by --port"
            )
        note = notes[0] if notes else None
    if note is None:
        return None
    if note.owner is not None:
        raise UsageError(
            f"{note.address} was started for {note.owner}",
            hint="it is stopped when the data set is deleted",
        )
    stop_member(note)
    return note.address


def ports() -> list[int]:
    """The ports of the members on this machine."""
    return [note.port for note in members_here()]


def _options(
    memory: str, flash: str | None, listen: str, port: int, threads: int | None
) -> MemberOptions:
    return parse_options(memory=memory, flash=flash, listen=listen, port=port, threads=threads)


def _told(started: Started) -> StartedMember:
    return StartedMember(started.note.address, started.fresh, advice(started.note))


def _shown(note: MemberNote, answer: Json) -> Json:
    # An answer without our process is that of another program on this port.
    runs = note.runs
    stats: Json | None = answer["stats"] if runs and note.state == "running" else None
    options = note.options
    memory_bytes = max(0, stats["bytes"] - stats["flash_bytes"]) if stats is not None else 0
    return {
        "address": note.address,
        "listen": options.listen,
        "port": note.port,
        "state": note.state if runs else "gone",
        "owner": note.owner,
        "supervisor_pid": note.pid,
        "pid": note.member_pid if runs else None,
        "started_s": note.started_s,
        "restarts": note.restarts,
        "last_end": note.last_end,
        "log": note.log,
        "flash": None if options.flash is None else asdict(options.flash),
        "error": None if stats is not None or not runs else answer["error"],
        "memory_bytes": memory_bytes,
        "stats": stats,
    }
