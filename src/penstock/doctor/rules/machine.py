"""Findings about this machine: FUSE, kernel, memory, and the cgroup of a server."""

from collections.abc import Iterator

from penstock.doctor.facts.machine import Cgroup, Machine, Memory
from penstock.doctor.findings import Finding, bad, note, ok, slow
from penstock.units import MIB, format_size

SUBJECT = "this machine"

# Every reader notices a kernel that stalls for this share of ten seconds.
_STALLED = 0.10
_LITTLE_MEMORY = 0.05
# Reading dropped pages back at the speed of a slow disk or faster.
_THRASHING_BYTES_PER_S = 50 * MIB


def judge_machine(machine: Machine, *, wants_allow_other: bool = False) -> list[Finding]:
    return [
        *_fuse(machine, wants_allow_other=wants_allow_other),
        _kernel(machine),
        _memory(machine.memory),
    ]


def judge_thrashing(refaulted_bytes: int | None, seconds: float) -> list[Finding]:
    """Judge how much the kernel read back into the page cache while the doctor looked."""
    if refaulted_bytes is None or seconds <= 0:
        return []
    rate = refaulted_bytes / seconds
    why = f"{format_size(rate)} a second were read back, measured for {seconds:.1f} s"
    if rate < _THRASHING_BYTES_PER_S:
        return [ok(SUBJECT, "the page cache is large enough", why)]
    what = "the page cache is too small: the kernel reads dropped pages again at once"
    return [slow(SUBJECT, what, why, "give the job more memory, or run fewer workers at a time")]


def judge_headroom(
    subject: str, memory: Memory, used_bytes: int, limit_bytes: int
) -> list[Finding]:
    """Judge whether the machine has the memory that a server may still take (its --memory)."""
    more = max(0, limit_bytes - used_bytes)
    why = (
        f"it may take {format_size(more)} more (--memory {format_size(limit_bytes)}), "
        f"{format_size(memory.available_bytes)} are available"
    )
    if more <= memory.available_bytes:
        return [ok(subject, "the machine has enough memory for its server", why)]
    what = "its server may need more memory than the machine has"
    return [slow(subject, what, why, "mount with a smaller --memory, or free some memory")]


def judge_cgroup(subject: str, group: Cgroup, memory_limit_bytes: int) -> list[Finding]:
    """`memory_limit_bytes` is the server's own limit (--memory)."""
    limit = "unlimited" if group.limit_bytes is None else format_size(group.limit_bytes)
    findings: list[Finding] = []
    if group.oom_kills:
        what = "the kernel has killed processes of its cgroup for lack of memory"
        remedy = "raise the memory limit of the cgroup; page cache counts against it"
        findings.append(bad(subject, what, f"oom_kill {group.oom_kills}, limit {limit}", remedy))
    if group.limit_bytes is not None and group.limit_bytes < memory_limit_bytes:
        half = format_size(group.limit_bytes / 2).replace(" ", "")
        what = "its server may use more memory than its cgroup allows"
        why = f"--memory {format_size(memory_limit_bytes)}, cgroup {limit}"
        remedy = f"raise the limit of the cgroup, or mount with --memory {half}"
        findings.append(slow(subject, what, why, remedy))
    used = f"{format_size(group.used_bytes)} of {limit}"
    return findings or [ok(subject, "its cgroup has memory left", used)]


def _fuse(machine: Machine, *, wants_allow_other: bool) -> Iterator[Finding]:
    if machine.fuse_error is not None:
        what = "/dev/fuse cannot be opened: nothing can be mounted"
        remedy = "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
        yield bad(SUBJECT, what, machine.fuse_error, remedy)
    else:
        yield ok(SUBJECT, "/dev/fuse can be opened")
    if machine.is_root:
        return
    if machine.fusermount is None:
        what = "fusermount3 is missing: without it only root can mount"
        yield bad(SUBJECT, what, "not in PATH", "apt-get install fuse3")
    if wants_allow_other and not machine.user_allow_other:
        what = "a mount wants allow-other, which this machine forbids"
        remedy = "echo user_allow_other >> /etc/fuse.conf (as root)"
        yield bad(SUBJECT, what, "/etc/fuse.conf has no user_allow_other", remedy)


def _kernel(machine: Machine) -> Finding:
    release = f"Linux {machine.release}"
    if machine.kernel < (6, 9):
        what = (
            "this kernel is older than 6.9: no passthrough for large files, "
            "and a server that is replaced needs a journal of requests"
        )
        return note(SUBJECT, what, release, "a newer kernel reads large files faster")
    if machine.kernel <= (6, 12):
        what = (
            "this kernel cannot drop a cached listing on request, "
            "so listings are not cached: each `ls` asks the server"
        )
        return note(SUBJECT, what, f"{release}; fixed in 6.13")
    return ok(SUBJECT, "the kernel has all features that Penstock uses", release)


def _memory(memory: Memory) -> Finding:
    left = f"{format_size(memory.available_bytes)} of {format_size(memory.total_bytes)} available"
    remedy = "run fewer workers, a smaller MEM tier, or a larger machine"
    if memory.stalled_share is not None and memory.stalled_share >= _STALLED:
        why = f"for {memory.stalled_share:.0%} of the last 10 s (/proc/pressure/memory); {left}"
        return slow(SUBJECT, "programs wait for memory", why, remedy)
    if memory.total_bytes and memory.available_bytes < _LITTLE_MEMORY * memory.total_bytes:
        return slow(SUBJECT, "little memory is left for the page cache", left, remedy)
    return ok(SUBJECT, "enough memory is available", left)
