"""Why a training job does not run, or does not get on.

A job that has failed is wrong for whoever asks for it by name. Among all there is it is a note: a
training that fails is no fault of this machine, and stays in the list until it is deleted.
"""

from collections.abc import Iterator

from penstock.doctor.facts.declared import LoopSeen
from penstock.doctor.facts.jobs import Awaited, JobSeen
from penstock.doctor.facts.mounts import Mount
from penstock.doctor.findings import Finding, ok
from penstock.doctor.rules.mounts import judge_progress
from penstock.jobs.job_status import FAILED, QUEUING, RUNNING, SUCCEEDED
from penstock.units import MIB, format_duration, format_size

_LONG_DELETION_S = 60.0  # a keeper gives a job 20 s
_IDLE = 0.05  # of one core
_MUCH_BYTES = MIB  # between two looks
_HOW_TO_MEND = {
    "NoLimit": "run Penstock as root, or in a session that was given cgroups (Delegate=yes); or "
    "the job in an image: docker and podman see to its limits",
    "NoNamespace": "run Penstock as root, or allow user namespaces to users: sysctl -w "
    "kernel.unprivileged_userns_clone=1",
}


def judge_job(
    seen: JobSeen, loop: LoopSeen, later: JobSeen | None = None, *, by_name: bool = False
) -> list[Finding]:
    """`later`: the same, looked at again; `by_name`: somebody asks for this one."""
    if later is not None and later.phase != seen.phase:
        seen, later = later, None  # it went on meanwhile
    if seen.deleting_s is not None:
        return _deletion(seen, seen.deleting_s, loop)
    if seen.phase == SUCCEEDED:
        return [ok(seen.name, "it succeeded", _ago(seen.ended_s))]
    if seen.phase == FAILED:
        return [_failure(seen, by_name=by_name)]
    if seen.phase == RUNNING:
        return [_running(seen, loop, later), *_notes(seen)]
    if seen.supervised:
        return [*_beginning(seen), *_notes(seen)]
    if seen.awaited:
        return [_waits_for(seen, one) for one in seen.awaited]
    if not loop.runs:
        return [
            Finding(
                "bad",
                seen.name,
                "it has not begun, and nobody is there to begin it",
                "the loop does not run",
                f"penstock up; its log: {loop.log}",
            )
        ]
    if seen.phase == QUEUING:
        return [_queued(seen)]
    return [Finding("note", seen.name, "it is about to begin", "the loop runs")]


def judge_reading(
    seen: JobSeen, later: JobSeen, dataset: str, before: Mount, after: Mount
) -> list[Finding]:
    """Does a job that runs wait for its data? `before`, `after`: the mount of one of its data
    sets, by two looks. GPUs are not asked: who drives one uses a core."""
    if seen.phase != RUNNING or later.phase != RUNNING or not before.stats or not after.stats:
        return []
    seconds = later.looked_s - seen.looked_s
    used_s = max(0.0, later.cpu_s - seen.cpu_s)
    if judge_progress(before, after, dataset):
        if used_s >= _IDLE * seconds:
            return []
        return [
            Finding(
                "slow",
                seen.name,
                f"it waits for data of {dataset}",
                f"its processes used {used_s:.2f} s of CPU in {seconds:.1f} s, while requests "
                "to the mount wait and none is answered",
                _doctor(dataset),
            )
        ]
    came = after.stats["store_bytes"] - before.stats["store_bytes"]
    hits = sum(after.stats["hit_bytes"].values()) - sum(before.stats["hit_bytes"].values())
    waits = bool(before.waiting and after.waiting)
    if seen.prepared or after.stats["plans"] or not waits or came < max(_MUCH_BYTES, hits):
        return []
    apart_s = after.looked_s - before.looked_s
    return [
        Finding(
            "slow",
            seen.name,
            f"what it reads of {dataset} is not cached, and the mount is not told what comes next",
            f"in {apart_s:.1f} s {format_size(came)} came from object storage and "
            f"{format_size(hits)} from the cache; {after.waiting} requests of readers wait",
            "penstock submit with --plan: its loaders tell what they will read; or with "
            "--warm: it is loaded first",
        )
    ]


# -- one rule each -------------------------------------------------------------------------------


def _deletion(seen: JobSeen, for_s: float, loop: LoopSeen) -> list[Finding]:
    why = f"for {format_duration(for_s)}"
    if not loop.runs:
        return [
            Finding(
                "bad",
                seen.name,
                "it is being deleted, and nobody does it",
                f"{why}; the loop does not run",
                f"penstock up; its log: {loop.log}",
            )
        ]
    if for_s <= _LONG_DELETION_S:
        return [Finding("note", seen.name, "it is being deleted", why)]
    return [
        Finding(
            "bad",
            seen.name,
            "it is being deleted, and does not end",
            why,
            f"its log: {seen.log}; the loop's: {loop.log}",
        )
    ]


def _failure(seen: JobSeen, *, by_name: bool) -> Finding:
    message, _, hint = seen.message.partition(" (hint: ")
    who = message.partition(" ")[0]
    # Without it, those of the chief are shown.
    instance = f" -i {who}" if len(seen.instances) > 1 and who in seen.instances else ""
    logs = f"penstock logs {seen.plain_name} --tail 50{instance}{_namespace(seen)}"
    return Finding(
        "bad" if by_name else "note",
        seen.name,
        f"it failed: {message}",
        ", ".join(filter(None, (seen.reason, _ago(seen.ended_s)))),
        f"{hint.removesuffix(')')}; what it printed: {logs}" if hint else logs,
    )


def _running(seen: JobSeen, loop: LoopSeen, later: JobSeen | None) -> Finding:
    then = later or seen
    how = seen.message if seen.running_s is None else f"begun {_ago(seen.running_s)}"
    if not seen.kept and not then.kept:
        if then.supervised or loop.runs:
            return Finding(
                "note",
                seen.name,
                "its processes are gone, and that is being noticed",
                f"{how}; its keeper is gone",
                _describe(seen),
            )
        return Finding(
            "bad",
            seen.name,
            "it says that it runs, and its processes are gone",
            f"{how}; its keeper and its supervisor are gone, and the loop does not run",
            f"penstock up; its log: {seen.log}",
        )
    if seen.lost and then.lost:
        return Finding(
            "bad",
            seen.name,
            "it says that it runs, and all its instances are gone",
            f"{how}; its keeper lives, and none of {then.lost} instances does",
            f"penstock delete job {seen.plain_name}{_namespace(seen)}, and submit it again; its "
            f"log: {seen.log}",
        )
    if not then.supervised and not loop.runs:
        return Finding(
            "note",
            seen.name,
            "it runs without its supervisor: its status is not kept up",
            f"{how}; its supervisor is gone, and the loop does not run",
            "penstock up",
        )
    return ok(seen.name, "it runs", how)


def _beginning(seen: JobSeen) -> Iterator[Finding]:
    if seen.reason == "Retrying":
        yield Finding(
            "note",
            seen.name,
            "it failed, and is begun again",
            seen.message,
            f"penstock logs {seen.plain_name} --tail 50{_namespace(seen)}",
        )
    else:
        yield ok(seen.name, "it is being begun", seen.message)


def _waits_for(seen: JobSeen, one: Awaited) -> Finding:
    if not one.is_declared:
        return Finding(
            "bad",
            seen.name,
            "it waits for a data set that is not declared",
            one.why,
            f"apply a Dataset {one.key.name} in the namespace {one.key.namespace}; "
            "`penstock get datasets -A` lists what is declared",
        )
    return Finding(
        "bad",
        seen.name,
        "it waits for its data",
        one.why,
        f"penstock doctor {one.key.name}{_of(one.key.namespace)}",
    )


def _queued(seen: JobSeen) -> Finding:
    if seen.too_many:
        return Finding(
            "bad",
            seen.name,
            "it needs more GPUs than this machine has, and will never start",
            seen.message,
            f"penstock delete job {seen.plain_name}{_namespace(seen)}, and submit "
            "it with fewer --gpus; if some went away: nvidia-smi",
        )
    return Finding(
        "note",
        seen.name,
        "it waits for its turn",
        "; ".join((seen.message, *seen.holders)),
        "it starts by itself; what others use: penstock top job -A",
    )


def _notes(seen: JobSeen) -> Iterator[Finding]:
    for reason, message in seen.notes:
        if reason == "NoLimit":
            yield Finding("note", seen.name, message, "its keeper said so", _HOW_TO_MEND[reason])
        elif reason == "NoNamespace":
            yield Finding(
                "note",
                seen.name,
                "its processes have no namespace of their own",
                message,
                _HOW_TO_MEND[reason],
            )


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{format_duration(max(0.0, seconds))} ago"


def _describe(seen: JobSeen) -> str:
    return f"penstock describe job {seen.plain_name}{_namespace(seen)}"


def _doctor(dataset: str) -> str:
    """`dataset`: as people call it, team/imagenet in another namespace than `default`."""
    namespace, _, name = dataset.rpartition("/")
    return f"penstock doctor {name}{_of(namespace or 'default')}"


def _namespace(seen: JobSeen) -> str:
    return _of(seen.namespace)


def _of(namespace: str) -> str:
    return "" if namespace == "default" else f" -n {namespace}"
