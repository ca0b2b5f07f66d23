"""What is wrong with a mount, or makes its readers wait."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.doctor.facts.mounts import Mount
from penstock.doctor.findings import Finding, ok
from penstock.doctor.rules.machine import judge_cgroup
from penstock.fuse.mounting import READAHEAD_KB
from penstock.units import KIB, format_duration, format_size

Json = Mapping[str, Any]

_NEAR = 0.9
# Reads so small, of files that are not, are a reader's choice.
_SMALL_READ_BYTES, _LARGE_FILE_BYTES, _MANY_READS = 16 * KIB, 64 * KIB, 1000
_OFTEN = 0.05  # of all requests to the store
_FETCHED_AGAIN = 1.2  # times the whole data set


def judge_mount(mount: Mount, subject: str, *, anew: str) -> list[Finding]:
    """`anew`: what mounts it anew, a command or words."""
    gone = list(_whether_served(mount, subject, anew))
    if mount.stats is None:
        return gone or [ok(subject, "the next server is about to take over", mount.state)]
    stats = mount.stats
    return [
        *(gone or [ok(subject, "is served", f"{mount.mountpoint}, pid {mount.server_pid}")]),
        *_restarts(mount, subject),
        *_listing(mount, subject),
        *_read_ahead(mount, subject),
        *_limits(stats, subject),
        *(
            judge_cgroup(subject, mount.cgroup, stats["memory_limit_bytes"])
            if mount.cgroup is not None
            else []
        ),
        *_reads(stats, subject),
        *_store(stats, subject),
    ]


def judge_progress(before: Mount, after: Mount, subject: str) -> list[Finding]:
    """Do requests wait of which none was answered between two looks?"""
    if not before.stats or not after.stats or not before.waiting or not after.waiting:
        return []
    seconds = after.looked_s - before.looked_s
    moved = sum(after.stats["requests"].values()) - sum(before.stats["requests"].values())
    if moved or after.stats["store_bytes"] != before.stats["store_bytes"]:
        return []
    return [
        Finding(
            "slow",
            subject,
            f"{after.waiting} requests of readers wait, and nothing moves",
            f"for {seconds:.1f} s no request was answered and no byte came from the store",
            f"its log says what it waits for: {after.log}" if after.log else "look at the store",
        )
    ]


# -- one rule each -------------------------------------------------------------------------------


def _whether_served(mount: Mount, subject: str, anew: str) -> Iterator[Finding]:
    log = f"; its log: {mount.log}" if mount.log else ""
    away = f"penstock umount {mount.mountpoint}"
    if not mount.supervisor_runs and not mount.server_runs:
        what = "its supervisor and its server are gone; readers get errors"
        yield Finding(
            "bad",
            subject,
            what if mount.is_mounted else "is not mounted any more",
            f"neither process of {mount.mountpoint} runs",
            f"{away}, then {anew}",
        )
    elif mount.state == "waiting":
        yield Finding(
            "bad",
            subject,
            "has no server at the moment: it ends again and again",
            f"{mount.restarts} restarts; the last one: {mount.last_end}",
            f"mend what it says{log}",
        )
    elif not mount.is_mounted:
        yield Finding(
            "bad",
            subject,
            "is not in the mount table, though it has processes",
            mount.mountpoint,
            f"{away}, then {anew}",
        )
    elif mount.stats is None and mount.state == "serving":
        yield Finding(
            "bad",
            subject,
            "its server does not answer: it is stuck",
            mount.silence or "",
            f"the supervisor replaces it by itself; if it does not: {away}, then {anew}{log}",
        )
    elif not mount.supervisor_runs:
        yield Finding(
            "bad",
            subject,
            "its supervisor is gone: a server that ends is not replaced",
            f"only the server runs, pid {mount.server_pid}",
            f"{away}, then {anew}",
        )


def _restarts(mount: Mount, subject: str) -> Iterator[Finding]:
    if mount.restarts:
        times = "once" if mount.restarts == 1 else f"{mount.restarts} times"
        yield Finding(
            "note",
            subject,
            f"its server was replaced {times}",
            f"the last end: {mount.last_end}",
            f"its log says more: {mount.log}" if mount.log else "",
        )
    else:
        yield ok(subject, "its server was never replaced", "0 restarts")


def _listing(mount: Mount, subject: str) -> Iterator[Finding]:
    stats, told = mount.stats or {}, mount.told or {}
    if error := stats.get("refresh_error"):
        yield Finding(
            "bad",
            subject,
            f"the last refresh failed: {error}",
            "what it shows is as old as the last listing that succeeded",
            f"once the store answers: penstock refresh {mount.mountpoint}",
        )
    if damage := stats.get("catalog_damage"):
        yield _damaged_catalog(mount, subject, damage)
    for note in told.get("notes", ()):
        if note.startswith("--allow-other"):
            yield ok(subject, note)  # as it was asked for; for what root declares, the rule
        elif not note.startswith("readahead stays"):  # judged by what the kernel says, below
            yield Finding("note", subject, note)
    if hidden := stats.get("hidden"):
        yield Finding(
            "note",
            subject,
            f"{hidden:,} objects cannot be shown as files",
            "their names, or what they are, have no place in a file system",
            f"penstock doctor {mount.mountpoint} lists them",
        )
    if not stats.get("files"):
        yield Finding(
            "note",
            subject,
            "it is empty",
            f"0 files in {mount.source}",
            "check the prefix; if objects came since: penstock refresh " + mount.mountpoint,
        )
    else:
        size = format_size(stats["bytes"])
        yield ok(subject, "files are shown", f"{stats['files']:,} files, {size}")


def _damaged_catalog(mount: Mount, subject: str, damage: Json) -> Finding:
    if damage["healed"]:
        advice = "it was made anew from a listing; look at the disk"
        return Finding("note", subject, "its catalog was damaged", damage["what"], advice)
    what = "its catalog was damaged, and is not made anew yet"
    advice = f"it needs a listing of the store: penstock refresh {mount.mountpoint}"
    return Finding("bad", subject, what, damage["what"], advice)


def _read_ahead(mount: Mount, subject: str) -> Iterator[Finding]:
    kilobytes = mount.read_ahead_kb
    if kilobytes is None:
        return
    if kilobytes < READAHEAD_KB:
        yield Finding(
            "slow",
            subject,
            f"the kernel reads only {kilobytes} KiB ahead of a reader",
            f"read_ahead_kb is {kilobytes}, and should be {READAHEAD_KB}; raising it needs root",
            f"echo {READAHEAD_KB} > /sys/class/bdi/{mount.device}/read_ahead_kb",
        )
    else:
        yield ok(subject, "the kernel reads far enough ahead", f"{kilobytes} KiB")


def _limits(stats: Json, subject: str) -> Iterator[Finding]:
    memory, most = stats["memory_bytes"], stats["memory_limit_bytes"]
    why = f"{format_size(memory)} of {format_size(most)}"
    if memory > _NEAR * most:
        yield Finding(
            "slow",
            subject,
            "its server is near its memory limit, and lets go of buffers",
            why,
            "mount with a larger --memory, or a smaller --buffer",
        )
    else:
        yield ok(subject, "its server has memory", why)
    descriptors, most = stats["descriptors"], stats["descriptor_limit"]
    why = f"{descriptors:,} of {most:,}"
    if descriptors > _NEAR * most:
        yield Finding(
            "slow",
            subject,
            "its server has nearly as many open files as it may",
            why,
            "raise the hard limit: ulimit -Hn, or LimitNOFILE= in the unit, before it is mounted",
        )
    else:
        yield ok(subject, "its server has descriptors", why)


def _reads(stats: Json, subject: str) -> Iterator[Finding]:
    reads, read_bytes = stats["requests"].get("READ", 0), stats["read_bytes"]
    mean_file = stats["bytes"] / stats["files"] if stats["files"] else 0
    if reads >= _MANY_READS and mean_file >= _LARGE_FILE_BYTES:
        mean = read_bytes / reads
        why = f"{format_size(mean)} a read, {reads:,} reads; files of {format_size(mean_file)}"
        if mean < _SMALL_READ_BYTES:
            yield Finding(
                "slow",
                subject,
                "readers read very little at a time",
                why,
                "read whole files, or in larger pieces; of a file that is read here and there "
                "(mmap, O_DIRECT) every piece is a request",
            )
        else:
            yield ok(subject, "readers read enough at a time", why)
    if stats.get("corrupt_blocks"):
        yield Finding(
            "note",
            subject,
            "cached blocks were damaged on disk, dropped and fetched again",
            f"{stats['corrupt_blocks']:,} blocks",
            "penstock cache verify; then look at the disk",
        )
    if stats.get("errors"):
        by_name = ", ".join(f"{name} {count}" for name, count in stats["errors_by_name"].items())
        yield Finding("note", subject, "readers got errors", by_name, "its log says why")


def _store(stats: Json, subject: str) -> Iterator[Finding]:
    requests, retries = stats["store_requests"], stats["store_retries"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in stats["store_retries_by_kind"].items())
    why = f"{retries:,} of {requests + retries:,} requests were sent again"
    if retries > _OFTEN * (requests + retries):
        yield Finding(
            "slow",
            subject,
            "object storage fails often",
            f"{why} ({kinds})",
            "for slow_down: fewer --threads, or ask for a higher rate; else look at the network",
        )
    elif requests:
        yield ok(subject, "object storage seldom fails", why)
    came, size = stats["store_bytes"], stats["bytes"]
    uptime = format_duration(stats["uptime_s"])
    if size and came > _FETCHED_AGAIN * size:
        hits = sum(stats["hit_bytes"].values())
        yield Finding(
            "slow",
            subject,
            "it is read more than once and comes from object storage each time",
            f"{format_size(came)} came in {uptime}, of a data set of {format_size(size)}; "
            f"{hits / (hits + came):.0%} of the bytes were in the cache",
            f"a cache that holds {format_size(size)} holds all of it",
        )
