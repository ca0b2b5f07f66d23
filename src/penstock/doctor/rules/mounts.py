"""Findings about a mount: its processes, its listing, its readers, and the tiers of its cache."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.doctor.facts.mounts import Disk, Mount, Tier
from penstock.doctor.findings import Finding, bad, note, ok, slow
from penstock.doctor.rules.machine import judge_cgroup
from penstock.fuse.mounting import READAHEAD_KB
from penstock.units import KIB, MIB, counted, format_duration, format_size

Json = Mapping[str, Any]

_NEAR = 0.9
# Reads this small, of files that are larger, are the reader's choice.
_SMALL_READ_BYTES, _LARGE_FILE_BYTES, _MANY_READS = 16 * KIB, 64 * KIB, 1000
_OFTEN = 0.05  # of all requests to the store
_FETCHED_AGAIN = 1.2  # times the whole data set


def judge_mount(mount: Mount, subject: str, *, remount: str) -> list[Finding]:
    """`remount` is what mounts it again: a command or words."""
    broken = list(_processes(mount, subject, remount))
    if mount.stats is None:
        return broken or [ok(subject, "the next server is about to take over", mount.state)]
    stats = mount.stats
    where = f"{mount.mountpoint}, pid {mount.server_pid}"
    findings = [
        *(broken or [ok(subject, "is served", where)]),
        _restarts(mount, subject),
        *_listing(mount, subject),
        *_read_ahead(mount, subject),
        *_limits(stats, subject),
    ]
    if mount.cgroup is not None:
        findings += judge_cgroup(subject, mount.cgroup, stats["memory_limit_bytes"])
    return [*findings, *_reads(stats, subject), *_store(stats, subject)]


def judge_progress(before: Mount, after: Mount, subject: str) -> list[Finding]:
    """Judge whether requests wait while none is answered between two looks."""
    if not before.stats or not after.stats or not before.waiting or not after.waiting:
        return []
    seconds = after.looked_s - before.looked_s
    answered = sum(after.stats["requests"].values()) - sum(before.stats["requests"].values())
    if answered or after.stats["store_bytes"] != before.stats["store_bytes"]:
        return []
    return [
        slow(
            subject,
            f"{after.waiting} requests of readers wait, and none is being answered",
            f"for {seconds:.1f} s no request was answered and the store sent no byte",
            f"see what it waits for in its log: {after.log}" if after.log else "check the store",
        )
    ]


def _processes(mount: Mount, subject: str, remount: str) -> Iterator[Finding]:
    log = f"; its log: {mount.log}" if mount.log else ""
    umount = f"penstock umount {mount.mountpoint}"
    if not mount.supervisor_runs and not mount.server_runs:
        what = "is no longer mounted"
        if mount.is_mounted:
            what = "its supervisor and its server are gone: readers get errors"
        why = f"neither process of {mount.mountpoint} runs"
        yield bad(subject, what, why, f"{umount}, then {remount}")
    elif mount.state == "waiting":
        what = "has no server at the moment: each one crashes"
        why = f"{mount.restarts} restarts; the last one: {mount.last_end}"
        yield bad(subject, what, why, f"fix this error{log}")
    elif not mount.is_mounted:
        what = "has processes, but is not in the mount table"
        yield bad(subject, what, mount.mountpoint, f"{umount}, then {remount}")
    elif mount.stats is None and mount.state == "serving":
        what = "its server does not answer: it is stuck"
        remedy = f"the supervisor replaces it soon; if it does not: {umount}, then {remount}{log}"
        yield bad(subject, what, mount.no_answer or "", remedy)
    elif not mount.supervisor_runs:
        what = "its supervisor is gone: if the server ends, nothing replaces it"
        why = f"only the server runs, pid {mount.server_pid}"
        yield bad(subject, what, why, f"{umount}, then {remount}")


def _restarts(mount: Mount, subject: str) -> Finding:
    if not mount.restarts:
        return ok(subject, "its server was never replaced", "0 restarts")
    times = "once" if mount.restarts == 1 else f"{mount.restarts} times"
    log = f"see its log: {mount.log}" if mount.log else ""
    why = f"the last reason: {mount.last_end}"
    return note(subject, f"its server was replaced {times}", why, log)


def _listing(mount: Mount, subject: str) -> Iterator[Finding]:
    stats, notes = mount.stats or {}, (mount.doctor_answer or {}).get("notes", ())
    refresh = f"penstock refresh {mount.mountpoint}"
    if error := stats.get("refresh_error"):
        what = f"the last refresh failed: {error}"
        why = "files are shown as they were at the last listing that succeeded"
        yield bad(subject, what, why, f"when the store answers again: {refresh}")
    if damage := stats.get("catalog_damage"):
        if damage["healed"]:
            remedy = "it was rebuilt from a listing; check the disk"
            yield note(subject, "its catalog was damaged", damage["what"], remedy)
        else:
            what = "its catalog was damaged, and is not rebuilt yet"
            yield bad(subject, what, damage["what"], f"list the store again: {refresh}")
    for text in notes:
        if text.startswith("--allow-other"):
            yield ok(subject, text)  # as requested; judge_machine covers what root declares
        elif not text.startswith("readahead stays"):  # judged below by the kernel's own number
            yield note(subject, text)
    if hidden := stats.get("hidden"):
        what = f"{counted(hidden, 'object')} cannot be shown as files"
        why = "a file system cannot have such names or objects"
        yield note(subject, what, why, f"to list them: penstock doctor {mount.mountpoint}")
    if stats.get("files"):
        why = f"{counted(stats['files'], 'file')}, {format_size(stats['bytes'])}"
        yield ok(subject, "files are shown", why)
    else:
        remedy = f"check the prefix; if objects were added since: {refresh}"
        yield note(subject, "it is empty", f"0 files in {mount.source}", remedy)


def _read_ahead(mount: Mount, subject: str) -> Iterator[Finding]:
    kilobytes = mount.read_ahead_kb
    if kilobytes is None:
        return
    if kilobytes < READAHEAD_KB:
        what = f"the kernel reads only {kilobytes} KiB ahead of a reader"
        why = f"read_ahead_kb is {kilobytes}, and should be {READAHEAD_KB}; raising it needs root"
        path = f"/sys/class/bdi/{mount.device}/read_ahead_kb"
        yield slow(subject, what, why, f"echo {READAHEAD_KB} > {path}")
    else:
        yield ok(subject, "the kernel reads far enough ahead", f"{kilobytes} KiB")


def _limits(stats: Json, subject: str) -> Iterator[Finding]:
    memory, most = stats["memory_bytes"], stats["memory_limit_bytes"]
    why = f"{format_size(memory)} of {format_size(most)}"
    if memory > _NEAR * most:
        what = "its server is near its memory limit, and drops buffers"
        yield slow(subject, what, why, "mount with a larger --memory, or a smaller --buffer")
    else:
        yield ok(subject, "its server is below its memory limit", why)
    descriptors, most = stats["descriptors"], stats["descriptor_limit"]
    why = f"{descriptors:,} of {most:,}"
    if descriptors > _NEAR * most:
        what = "its server has nearly as many open files as its limit allows"
        remedy = "raise the hard limit (ulimit -Hn, or LimitNOFILE= in the unit), then mount again"
        yield slow(subject, what, why, remedy)
    else:
        yield ok(subject, "its server is below its limit of open files", why)


def _reads(stats: Json, subject: str) -> Iterator[Finding]:
    reads, read_bytes = stats["requests"].get("READ", 0), stats["read_bytes"]
    mean_file = stats["bytes"] / stats["files"] if stats["files"] else 0
    if reads >= _MANY_READS and mean_file >= _LARGE_FILE_BYTES:
        mean = read_bytes / reads
        why = f"{format_size(mean)} a read, {reads:,} reads; files of {format_size(mean_file)}"
        if mean < _SMALL_READ_BYTES:
            remedy = (
                "read whole files, or larger pieces; with random access (mmap, O_DIRECT) each "
                "piece is a request"
            )
            yield slow(subject, "readers read very little at a time", why, remedy)
        else:
            yield ok(subject, "readers read enough at a time", why)
    if stats.get("corrupt_blocks"):
        what = "cached blocks were damaged on disk; they were dropped and fetched again"
        remedy = "penstock cache verify; then check the disk"
        yield note(subject, what, f"{stats['corrupt_blocks']:,} blocks", remedy)
    if stats.get("errors"):
        by_name = ", ".join(f"{name} {count}" for name, count in stats["errors_by_name"].items())
        yield note(subject, "readers got errors", by_name, "see the reason in its log")


def _store(stats: Json, subject: str) -> Iterator[Finding]:
    requests, retries = stats["store_requests"], stats["store_retries"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in stats["store_retries_by_kind"].items())
    why = f"{retries:,} of {counted(requests + retries, 'request')} were retried"
    if retries > _OFTEN * (requests + retries):
        remedy = "for slow_down: fewer --threads, or ask for a higher rate; else check the network"
        yield slow(subject, "object storage fails often", f"{why} ({kinds})", remedy)
    elif requests:
        yield ok(subject, "object storage seldom fails", why)
    fetched, size = stats["store_bytes"], stats["bytes"]
    if size and fetched > _FETCHED_AGAIN * size:
        hits = sum(stats["hit_bytes"].values())
        why = (
            f"{format_size(fetched)} were fetched in {format_duration(stats['uptime_s'])}, of a "
            f"data set of {format_size(size)}; {hits / (hits + fetched):.0%} of the bytes read "
            "were in the cache"
        )
        what = "it is read more than once, and fetched from object storage each time"
        yield slow(subject, what, why, f"use a cache of {format_size(size)}: it holds all of it")


# -- tiers -------------------------------------------------------------------------------------

_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "9p", "afs")
)
_MEMORY = frozenset(("tmpfs", "ramfs"))
# Disks of virtual machines report that they rotate, whatever they are.
_VIRTUAL = ("vd", "xvd")
_FULL_BYTES, _FULL_SHARE = 64 * MIB, 0.01


def judge_tiers(
    tiers: Sequence[Tier],
    subject: str,
    *,
    data_bytes: int | None = None,
    cached_bytes: int | None = None,
    quota_option: str = "--tier",
) -> list[Finding]:
    """`quota_option` is what sets the quota of this mount."""
    findings: list[Finding] = []
    for tier in tiers:
        wrong = [
            *_failed_directories(tier, subject),
            *(finding for disk in tier.disks for finding in _disk(tier, disk, subject)),
            *_clamped(tier, subject, data_bytes),
            *_full(tier, subject, data_bytes, cached_bytes, quota_option),
        ]
        used = f"{format_size(tier.used_bytes)} of {format_size(tier.quota_bytes)} used"
        findings += wrong or [ok(subject, f"its {tier.medium} tier works", used)]
    return findings


def _failed_directories(tier: Tier, subject: str) -> Iterator[Finding]:
    for path, why, seconds in tier.failed:
        what = f"the cache directory {path} is not in use: its disk fails"
        remedy = "repair the disk; the directory is used again within a minute"
        yield bad(subject, what, f"{why}; for {format_duration(seconds)}", remedy)


def _disk(tier: Tier, disk: Disk, subject: str) -> Iterator[Finding]:
    if disk.error is not None:
        what = f"the disk of the cache directory {disk.path} does not answer"
        yield bad(subject, what, disk.error, "check the disk (dmesg), or use another directory")
        return
    yield from _medium(tier, disk, subject)
    yield from _free_space(tier, disk, subject)


def _medium(tier: Tier, disk: Disk, subject: str) -> Iterator[Finding]:
    here = f"the {tier.medium} tier at {disk.path}"
    why = f"its file system is {disk.kind}"
    if tier.medium == "MEM" and disk.kind not in _MEMORY:
        remedy = "use a path below /dev/shm, or name the medium that it is"
        yield slow(subject, f"{here} is not in memory", why, remedy)
    elif tier.medium != "MEM" and disk.kind in _MEMORY:
        what = f"{here} is in memory, and lost when the machine restarts"
        yield note(subject, what, why, "use a path on a disk")
    if disk.kind in _NETWORK or disk.kind.startswith("fuse"):
        remedy = "use a local disk: the cache should save network traffic"
        yield slow(subject, f"{here} is on a network file system", why, remedy)
    elif disk.kind == "overlay":
        what = f"{here} is in a container's own layer: it is slower, and removed with the container"
        yield note(subject, what, why, "give the container a volume for the cache")
    rotates = disk.rotational and not (disk.name or "").startswith(_VIRTUAL)
    if tier.medium == "SSD" and rotates:
        why = f"/sys/dev/block reports that {disk.name} rotates"
        yield slow(subject, f"{here} is on a rotating disk", why, "use an SSD, or write HDD")


def _free_space(tier: Tier, disk: Disk, subject: str) -> Iterator[Finding]:
    free = f"{format_size(disk.free_bytes)} of {format_size(disk.total_bytes)} free"
    left_in_quota = max(0, tier.quota_bytes - tier.used_bytes)
    if disk.free_bytes < max(_FULL_BYTES, _FULL_SHARE * disk.total_bytes) and left_in_quota:
        what = f"the disk of the cache directory {disk.path} is full"
        yield bad(subject, what, free, "free some space, or set a smaller quota")
    elif disk.with_root and len(tier.disks) == 1 and left_in_quota > disk.free_bytes:
        what = "the cache is on the same disk as the system, and may fill it"
        why = f"it may take {format_size(left_in_quota)} more, {free} at {disk.path}"
        yield note(subject, what, why, "use another disk, or set a smaller quota")
    if disk.inodes and disk.free_inodes < _FULL_SHARE * disk.inodes:
        what = f"the file system of {disk.path} has hardly any inodes left"
        why = f"{disk.free_inodes:,} of {disk.inodes:,} inodes free"
        yield bad(subject, what, why, "use a file system with more inodes (mkfs.ext4 -N, or XFS)")


def _clamped(tier: Tier, subject: str, data_bytes: int | None) -> Iterator[Finding]:
    if data_bytes is not None and data_bytes <= tier.high * tier.quota_bytes:
        return  # all of the data set fits: a larger disk would hold no more
    # A directory that is not in use adds nothing to the quota.
    if tier.wanted_bytes and not tier.failed and 0 < tier.quota_bytes < tier.wanted_bytes:
        why = (
            f"{format_size(tier.quota_bytes)} of {format_size(tier.wanted_bytes)}: "
            "the file system has no more"
        )
        what = f"its {tier.medium} tier is smaller than its quota"
        yield note(subject, what, why, "use a larger disk, or set a smaller quota")


def _full(
    tier: Tier, subject: str, data_bytes: int | None, cached_bytes: int | None, quota_option: str
) -> Iterator[Finding]:
    if not tier.quota_bytes or tier.used_bytes < tier.high * tier.quota_bytes * 0.99:
        return
    if data_bytes is None or cached_bytes is None or cached_bytes >= data_bytes:
        return
    missing = data_bytes - cached_bytes
    what = f"its {tier.medium} tier is full: all other data is fetched again at each read"
    if tier.policy != "keep":
        what = f"its {tier.medium} tier is full: new data evicts what was used longest ago"
    why = (
        f"{format_size(tier.used_bytes)} of {format_size(tier.quota_bytes)} used, "
        f"{format_size(missing)} of {format_size(data_bytes)} are not cached"
    )
    if data_bytes <= tier.high * tier.quota_bytes:
        others = format_size(max(0, tier.used_bytes - cached_bytes))
        remedy = (
            f"all of it would fit, but {others} are of other data or older versions: "
            "`penstock cache ls` lists them and `penstock cache clear` removes them"
        )
        yield slow(subject, what, why, remedy)
        return
    enough = format_size((tier.quota_bytes + missing) / tier.high)
    yield slow(subject, what, why, f"{quota_option} of {enough} would hold all of it")
