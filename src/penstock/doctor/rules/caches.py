"""A cache that is on the wrong disk, too small, full, or out."""

from collections.abc import Iterator, Sequence

from penstock.doctor.facts.caches import Disk, Tier
from penstock.doctor.findings import Finding, ok
from penstock.units import MIB, format_duration, format_size

_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "9p", "afs")
)
_MEMORY = frozenset(("tmpfs", "ramfs"))
# Disks of virtual machines say that they rotate, whatever they are.
_VIRTUAL = ("vd", "xvd")
_FULL_BYTES, _FULL_SHARE = 64 * MIB, 0.01


def judge_tiers(
    tiers: Sequence[Tier],
    subject: str,
    *,
    data_bytes: int | None = None,
    cached_bytes: int | None = None,
    where: str = "--tier",
) -> list[Finding]:
    """`where`: what sets a quota here, as the user wrote it."""
    findings: list[Finding] = []
    for tier in tiers:
        about = [
            *_out(tier, subject),
            *(finding for disk in tier.disks for finding in _disk(tier, disk, subject)),
            *_clamped(tier, subject),
            *_full(tier, subject, data_bytes, cached_bytes, where),
        ]
        used = f"{format_size(tier.used_bytes)} of {format_size(tier.quota_bytes)} used"
        findings += about or [ok(subject, f"its {tier.medium} tier is well", used)]
    return findings


def _out(tier: Tier, subject: str) -> Iterator[Finding]:
    for path, why, seconds in tier.out:
        yield Finding(
            "bad",
            subject,
            f"the cache directory {path} is out: reads go past it",
            f"{why}; for {format_duration(seconds)}",
            "mend the disk; it is taken back by itself within a minute",
        )


def _disk(tier: Tier, disk: Disk, subject: str) -> Iterator[Finding]:
    if disk.error is not None:
        yield Finding(
            "bad",
            subject,
            f"the disk of the cache directory {disk.path} does not answer",
            disk.error,
            "look at the disk (dmesg), or use another directory",
        )
        return
    yield from _medium(tier, disk, subject)
    yield from _room(tier, disk, subject)


def _medium(tier: Tier, disk: Disk, subject: str) -> Iterator[Finding]:
    here = f"the {tier.medium} tier at {disk.path}"
    if tier.medium == "MEM" and disk.kind not in _MEMORY:
        yield Finding(
            "slow",
            subject,
            f"{here} is not in memory",
            f"its file system is {disk.kind}",
            "use a path below /dev/shm, or call the medium what it is",
        )
    elif tier.medium != "MEM" and disk.kind in _MEMORY:
        yield Finding(
            "note",
            subject,
            f"{here} is in memory, and lost when the machine restarts",
            f"its file system is {disk.kind}",
            "use a path on a disk",
        )
    if disk.kind in _NETWORK or disk.kind.startswith("fuse"):
        yield Finding(
            "slow",
            subject,
            f"{here} is on a network file system",
            f"its file system is {disk.kind}",
            "use a local disk: the cache is to save the network",
        )
    elif disk.kind == "overlay":
        yield Finding(
            "note",
            subject,
            f"{here} is in a container's own layer: slower, and gone with it",
            "its file system is overlay",
            "give the container a volume for the cache",
        )
    rotates = disk.rotational and not (disk.name or "").startswith(_VIRTUAL)
    if tier.medium == "SSD" and rotates:
        yield Finding(
            "slow",
            subject,
            f"{here} is on a rotating disk",
            f"/sys/dev/block says so of {disk.name}",
            "use a path on an SSD, or say HDD",
        )


def _room(tier: Tier, disk: Disk, subject: str) -> Iterator[Finding]:
    free = f"{format_size(disk.free_bytes)} of {format_size(disk.total_bytes)} free"
    left_in_quota = max(0, tier.quota_bytes - tier.used_bytes)
    if disk.free_bytes < max(_FULL_BYTES, _FULL_SHARE * disk.total_bytes) and left_in_quota:
        yield Finding(
            "bad",
            subject,
            f"the disk of the cache directory {disk.path} is full",
            free,
            "free some space, or make the quota smaller",
        )
    elif disk.with_root and len(tier.disks) == 1 and left_in_quota > disk.free_bytes:
        yield Finding(
            "note",
            subject,
            "the cache shares its disk with the system, and may fill it",
            f"it may take {format_size(left_in_quota)} more, {free} at {disk.path}",
            "use another disk, or make the quota smaller",
        )
    if disk.inodes and disk.free_inodes < _FULL_SHARE * disk.inodes:
        yield Finding(
            "bad",
            subject,
            f"the file system of {disk.path} can hold hardly another file",
            f"{disk.free_inodes:,} of {disk.inodes:,} inodes free",
            "use a file system with more inodes (mkfs.ext4 -N, or XFS)",
        )


def _clamped(tier: Tier, subject: str) -> Iterator[Finding]:
    # A directory that is out counts for nothing in the quota.
    if tier.wanted_bytes and not tier.out and 0 < tier.quota_bytes < tier.wanted_bytes:
        yield Finding(
            "note",
            subject,
            f"its {tier.medium} tier is smaller than it was asked for",
            f"{format_size(tier.quota_bytes)} of {format_size(tier.wanted_bytes)}: "
            "the file system has no more",
            "use a larger disk, or ask for what there is",
        )


def _full(
    tier: Tier, subject: str, data_bytes: int | None, cached_bytes: int | None, where: str
) -> Iterator[Finding]:
    if not tier.quota_bytes or tier.used_bytes < tier.high * tier.quota_bytes * 0.99:
        return
    if data_bytes is None or cached_bytes is None or cached_bytes >= data_bytes:
        return
    missing = data_bytes - cached_bytes
    then = "comes from object storage at each reading"
    if tier.policy != "keep":
        then = "drives out what was used longest ago"
    yield Finding(
        "slow",
        subject,
        f"its {tier.medium} tier is full: what is not in it {then}",
        f"{format_size(tier.used_bytes)} of {format_size(tier.quota_bytes)} used, "
        f"{format_size(missing)} of {format_size(data_bytes)} are not cached",
        f"{where} of {format_size((tier.quota_bytes + missing) / tier.high)} would hold all of it",
    )
