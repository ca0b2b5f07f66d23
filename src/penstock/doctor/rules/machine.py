"""What of this machine stands in the way."""

from penstock.doctor.facts.machine import Cgroup, Machine, Memory
from penstock.doctor.findings import Finding, ok
from penstock.units import MIB, format_size

SUBJECT = "this machine"

# A kernel that pages like this for ten seconds is felt by every reader.
_STALLED = 0.10
_LITTLE_MEMORY = 0.05
# Reading back what was dropped, at the speed of a slow disk or more.
_THRASHING_BYTES_PER_S = 50 * MIB


def judge_machine(machine: Machine, *, wants_allow_other: bool = False) -> list[Finding]:
    return [
        *_fuse(machine, wants_allow_other=wants_allow_other),
        *_kernel(machine),
        *_memory(machine.memory),
    ]


def judge_thrashing(refaulted_bytes: int | None, seconds: float) -> list[Finding]:
    """Of what the kernel read back while the doctor looked."""
    if refaulted_bytes is None or seconds <= 0:
        return []
    rate = refaulted_bytes / seconds
    why = f"{format_size(rate)} a second, measured for {seconds:.1f} s"
    if rate < _THRASHING_BYTES_PER_S:
        return [ok(SUBJECT, "the page cache keeps what is read", f"reads back {why}")]
    return [
        Finding(
            "slow",
            SUBJECT,
            "the page cache is too small: what it drops is read again at once",
            f"{why} came back",
            "give the job more memory, or fewer workers at a time",
        )
    ]


def judge_room(subject: str, memory: Memory, held_bytes: int, limit_bytes: int) -> list[Finding]:
    """Has the machine what a server may still take? `limit_bytes`: its --memory."""
    more = max(0, limit_bytes - held_bytes)
    why = (
        f"it may take {format_size(more)} more (--memory {format_size(limit_bytes)}), "
        f"{format_size(memory.available_bytes)} are available"
    )
    if more <= memory.available_bytes:
        return [ok(subject, "the machine has the memory that its server may take", why)]
    return [
        Finding(
            "slow",
            subject,
            "the machine has less memory than its server may take",
            why,
            "mount with a smaller --memory, or make room",
        )
    ]


def judge_cgroup(subject: str, group: Cgroup, memory_limit_bytes: int) -> list[Finding]:
    """`memory_limit_bytes`: what the server gives itself (--memory)."""
    findings: list[Finding] = []
    if group.oom_kills:
        findings.append(
            Finding(
                "bad",
                subject,
                "the kernel has killed processes of its cgroup for memory",
                f"oom_kill {group.oom_kills}, limit {_limit(group)}",
                "raise the group's memory limit; page cache counts against it",
            )
        )
    if group.limit_bytes is not None and group.limit_bytes < memory_limit_bytes:
        findings.append(
            Finding(
                "slow",
                subject,
                "its server may hold more memory than its cgroup allows",
                f"--memory {format_size(memory_limit_bytes)}, group {_limit(group)}",
                f"raise the group's limit, or mount with --memory "
                f"{format_size(group.limit_bytes / 2).replace(' ', '')}",
            )
        )
    if not findings:
        used = format_size(group.used_bytes)
        findings.append(ok(subject, "its cgroup has room", f"{used} of {_limit(group)}"))
    return findings


def _limit(group: Cgroup) -> str:
    return "unlimited" if group.limit_bytes is None else format_size(group.limit_bytes)


def _fuse(machine: Machine, *, wants_allow_other: bool) -> list[Finding]:
    findings: list[Finding] = []
    if machine.fuse_error is not None:
        findings.append(
            Finding(
                "bad",
                SUBJECT,
                "/dev/fuse cannot be opened: nothing can be mounted",
                machine.fuse_error,
                "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
            )
        )
    else:
        findings.append(ok(SUBJECT, "/dev/fuse can be opened"))
    if machine.is_root:
        return findings
    if machine.fusermount is None:
        findings.append(
            Finding(
                "bad",
                SUBJECT,
                "an ordinary user needs fusermount3 to mount, and it is not there",
                "not in PATH",
                "apt-get install fuse3",
            )
        )
    if wants_allow_other and not machine.user_allow_other:
        findings.append(
            Finding(
                "bad",
                SUBJECT,
                "other users are to read a mount, which this machine forbids",
                "/etc/fuse.conf has no user_allow_other",
                "echo user_allow_other >> /etc/fuse.conf (as root)",
            )
        )
    return findings


def _kernel(machine: Machine) -> list[Finding]:
    if machine.kernel < (6, 9):
        return [
            Finding(
                "note",
                SUBJECT,
                "this kernel is older than 6.9: no passthrough for large files, "
                "and a server that is replaced keeps a journal of requests",
                f"Linux {machine.release}",
                "a newer kernel reads large files faster",
            )
        ]
    if machine.kernel <= (6, 12):
        return [
            Finding(
                "note",
                SUBJECT,
                "this kernel does not drop a cached listing when it is told to, "
                "so that listings are not cached: `ls` asks the server each time",
                f"Linux {machine.release}; 6.13 has it mended",
            )
        ]
    return [ok(SUBJECT, "the kernel has all that is used", f"Linux {machine.release}")]


def _memory(memory: Memory) -> list[Finding]:
    left = f"{format_size(memory.available_bytes)} of {format_size(memory.total_bytes)} available"
    findings: list[Finding] = []
    if memory.stalled_share is not None and memory.stalled_share >= _STALLED:
        findings.append(
            Finding(
                "slow",
                SUBJECT,
                "memory is short: programs wait for it",
                f"for {memory.stalled_share:.0%} of the last 10 s (/proc/pressure/memory); {left}",
                "fewer workers, a smaller MEM tier, or a larger machine",
            )
        )
    elif memory.total_bytes and memory.available_bytes < _LITTLE_MEMORY * memory.total_bytes:
        findings.append(
            Finding(
                "slow",
                SUBJECT,
                "little memory is left for the page cache",
                left,
                "fewer workers, a smaller MEM tier, or a larger machine",
            )
        )
    else:
        findings.append(ok(SUBJECT, "memory is not short", left))
    return findings
