"""Findings about declared resources: data sets, the loop, operations, training jobs.

A job that failed is wrong for the user who asks for it by name. Among all resources it is a note:
it is no fault of this machine, and stays in the list until it is deleted.
"""

from collections.abc import Iterator, Sequence

from penstock.doctor.facts.declared import (
    Awaited,
    DatasetFacts,
    JobFacts,
    LoopFacts,
    OperationFacts,
)
from penstock.doctor.facts.mounts import Mount
from penstock.doctor.findings import Finding, bad, note, ok, slow
from penstock.doctor.rules.machine import SUBJECT as THIS_MACHINE
from penstock.doctor.rules.mounts import judge_progress
from penstock.jobs.job_status import FAILED, QUEUING, RUNNING, SUCCEEDED
from penstock.units import MIB, format_duration, format_size

_UNREACHABLE = 3  # the exit code of an error of storage
_LONG_DELETION_S = 60.0  # the keeper of a job gives it 20 s
_LONG_SILENCE_S = 60.0
_IDLE = 0.05  # of one core
_MUCH_BYTES = MIB  # fetched between two looks
_CONTINUOUS = ("Cron", "OnEvent")
_NO_LOOP = "the loop is not running"
_STARTING = "it is about to start"
_MISSING_RIGHTS = {
    "NoLimit": "run Penstock as root, or in a session with delegated cgroups (Delegate=yes); or "
    "run the job in an image, where docker or podman sets its limits",
    "NoNamespace": "run Penstock as root, or allow user namespaces to users: sysctl -w "
    "kernel.unprivileged_userns_clone=1",
}


def judge_loop(
    loop: LoopFacts, unsettled: Sequence[str], operations: Sequence[OperationFacts]
) -> list[Finding]:
    """Judge whether the loop runs while there is something to do."""
    if loop.runs:
        return [ok(THIS_MACHINE, "the loop is running")]
    findings: list[Finding] = []
    if continuous := [one for one in operations if one.policy in _CONTINUOUS]:
        names = ", ".join(one.name for one in continuous)
        what = "it will not start when it is due: `penstock serve` is not running"
        remedy = (
            "penstock serve; or as a unit: penstock serve --unit "
            "> /etc/systemd/system/penstock.service"
        )
        findings.append(bad(names, what, f"its policy is {continuous[0].policy}", remedy))
    if unsettled and loop.last_error:
        what = "it ended before it was done"
        why = f"still to do: {', '.join(unsettled)}; its last error: {loop.last_error}"
        remedy = f"fix this error, then penstock up; its log: {loop.log}"
        findings.append(bad("the loop", what, why, remedy))
    return findings or [ok(THIS_MACHINE, "the loop has nothing to do")]


# -- data sets ---------------------------------------------------------------------------------


def judge_dataset(seen: DatasetFacts, loop: LoopFacts) -> list[Finding]:
    findings = [*_dataset_phase(seen, loop), *_changes(seen)]
    if seen.deleting_s is not None:
        long = seen.deleting_s > _LONG_DELETION_S
        delete = f"penstock delete dataset {seen.plain_name}{_option(seen.namespace)} --force"
        remedy = f"{delete} deletes it although it is in use" if long else ""
        why = f"for {format_duration(seen.deleting_s)}"
        findings.append((bad if long else note)(seen.name, "it is being deleted", why, remedy))
    for kind in seen.second_runtimes:
        what = f"the {kind} of the same name has no effect"
        remedy = f"penstock delete {kind.lower()} {seen.plain_name}{_option(seen.namespace)}"
        findings.append(note(seen.name, what, "it has a runtime already", remedy))
    for event in seen.warnings[-3:]:
        what = f"an earlier warning, {event.count} times: {event.reason}"
        findings.append(ok(seen.name, what, event.message))
    return findings


def _dataset_phase(seen: DatasetFacts, loop: LoopFacts) -> Iterator[Finding]:
    name, phase = seen.name, f"phase {seen.phase or 'none yet'}"
    target = f"{seen.plain_name}{_option(seen.namespace)}"
    up = f"penstock up {target}"
    ready = next((one for one in seen.conditions if one["type"] == "Ready"), None)
    if seen.deleting_s is not None:
        return
    if seen.trouble is not None:
        if seen.retry_in_s is not None and seen.retry_in_s > 0:
            phase += f"; retried in {format_duration(seen.retry_in_s)} if the loop is running"
        what = "it is bound, but a change to it failed" if seen.phase == "Bound" else "not bound"
        what += f": {seen.trouble['what']}"
        remedy = f"{seen.trouble.get('hint') or 'fix this error'}; then {up}"
        unreachable = seen.trouble.get("exit_code") == _UNREACHABLE
        yield bad(name, what, phase, remedy, unreachable=unreachable)
    elif not seen.has_runtime:
        why = "no runtime of its name and namespace is declared"
        remedy = f"apply one: kind PenstockRuntime, name {seen.plain_name}"
        yield bad(name, "it waits for a runtime", why, remedy)
    elif not seen.settled and loop.runs:
        yield note(name, "it is being mounted", phase, f"penstock get dataset {target} -w")
    elif not seen.settled:
        what = "it is not as declared, and nothing works on it"
        yield bad(name, what, f"{phase}; {_NO_LOOP}", f"{up}; its log: {loop.log}")
    elif ready is not None and ready["status"] == "False":
        message, hint = _split_hint(ready["message"])
        remedy = f"{hint}; then {up}" if hint else up
        yield bad(name, f"not bound: {message}", f"{ready['reason']}", remedy)
    elif seen.phase == "Bound" and not seen.mounted:
        what = "it should be mounted, but is not"
        yield bad(name, what, f"{seen.mountpoint} is not in the mount table", up)
    elif seen.phase == "Bound":
        yield ok(name, "it is bound", f"at {seen.mountpoint}")
    else:
        yield bad(name, "it is not bound", phase, up)


def _changes(seen: DatasetFacts) -> Iterator[Finding]:
    for one in seen.conditions:
        if one["type"] == "UpdateReady" and one["status"] == "False":
            message, hint = _split_hint(one["message"])
            what = f"a change needs a restart: {message}"
            yield note(seen.name, what, one["reason"], hint.strip("`"))
        elif one["type"] == "FieldsWithoutEffect":
            yield ok(seen.name, "some fields have no effect here", one["message"])


# -- operations --------------------------------------------------------------------------------


def judge_operation(
    seen: OperationFacts, loop: LoopFacts, later: OperationFacts | None = None
) -> list[Finding]:
    """`later` is the same operation at the second look."""
    return [_operation(seen, loop, later)]


def _operation(seen: OperationFacts, loop: LoopFacts, later: OperationFacts | None) -> Finding:
    name = seen.name
    if seen.phase == "Failed":
        remedy = f"fix this error, delete it and apply it again; its log: {seen.log}"
        return bad(name, f"it failed: {seen.message}", "its last condition says so", remedy)
    if seen.phase == "Executing":
        return _executing(seen, loop, later)
    if seen.phase == "Complete":
        return ok(name, "it is complete", seen.message)
    if seen.unbound:
        names = ", ".join(seen.unbound)
        what = f"it waits for the data set {names}"
        return bad(name, what, f"{names} is not bound", f"penstock doctor {seen.unbound[0]}")
    if seen.waits_for:
        target = f"{seen.kind.lower()} {seen.plain_name}{_option(seen.namespace)}"
        what = "it has not started yet"
        return note(name, what, seen.waits_for, f"penstock describe {target}")
    return _not_started(name, loop)


def _executing(seen: OperationFacts, loop: LoopFacts, later: OperationFacts | None) -> Finding:
    started = f"started {format_duration(seen.running_s or 0)} ago"
    if not seen.runs and not loop.runs:
        what = f"its process is gone, and nothing restarts it: {_NO_LOOP}"
        return bad(seen.name, what, started, f"penstock up; its log: {seen.log}")
    silent_s = (later or seen).silent_s or 0.0
    if later is not None and later.progress == seen.progress and silent_s > _LONG_SILENCE_S:
        why = f"{started}; wrote nothing for {format_duration(silent_s)}, at {_progress(seen)}"
        remedy = f"see its log: {seen.log}; and how its store answers: penstock doctor"
        return slow(seen.name, "it makes no progress", why, remedy)
    return ok(seen.name, "it is running", f"{started}, at {_progress(later or seen)}")


def _progress(seen: OperationFacts) -> str:
    progress = seen.progress or {}
    done, whole = progress.get("bytes"), progress.get("ofBytes")
    if isinstance(done, int) and isinstance(whole, int) and whole:
        return f"{100 * done // whole}%"
    return "an unknown share"


# -- training jobs -----------------------------------------------------------------------------


def judge_job(
    seen: JobFacts, loop: LoopFacts, later: JobFacts | None = None, *, by_name: bool = False
) -> list[Finding]:
    """`later` is the same job at the second look; `by_name`: the user asked for this job."""
    if later is not None and later.phase != seen.phase:
        seen, later = later, None
    if seen.deleting_s is not None:
        return [_deletion(seen, seen.deleting_s, loop)]
    if seen.phase == SUCCEEDED:
        return [ok(seen.name, "it succeeded", _ago(seen.ended_s))]
    if seen.phase == FAILED:
        return [_failure(seen, by_name=by_name)]
    if seen.phase == RUNNING:
        return [_running(seen, loop, later), *_notes(seen)]
    if seen.supervised:
        return [_preparing(seen), *_notes(seen)]
    if seen.awaited:
        return [_waits_for(seen, one) for one in seen.awaited]
    if seen.phase == QUEUING and loop.runs:
        return [_queued(seen)]
    return [_not_started(seen.name, loop)]


def judge_reading(
    seen: JobFacts, later: JobFacts, dataset: str, before: Mount, after: Mount
) -> list[Finding]:
    """Judge whether a running job waits for data of one of its data sets.

    `before` and `after` are the mount of the data set at two looks. GPU usage is not read: a
    process that drives a GPU uses a core.
    """
    if seen.phase != RUNNING or later.phase != RUNNING or not before.stats or not after.stats:
        return []
    seconds = later.looked_s - seen.looked_s
    used_s = max(0.0, later.cpu_s - seen.cpu_s)
    if judge_progress(before, after, dataset):
        if used_s >= _IDLE * seconds:
            return []
        why = (
            f"its processes used {used_s:.2f} s of CPU in {seconds:.1f} s, while requests to the "
            "mount wait and none is answered"
        )
        namespace, _, name = dataset.rpartition("/")
        remedy = f"penstock doctor {name}{_option(namespace or 'default')}"
        return [slow(seen.name, f"it waits for data of {dataset}", why, remedy)]
    fetched = after.stats["store_bytes"] - before.stats["store_bytes"]
    hits = sum(after.stats["hit_bytes"].values()) - sum(before.stats["hit_bytes"].values())
    waits = bool(before.waiting and after.waiting)
    if seen.prepared or after.stats["plans"] or not waits or fetched < max(_MUCH_BYTES, hits):
        return []
    what = f"the data of {dataset} that it reads is neither cached nor prefetched"
    why = (
        f"in {after.looked_s - before.looked_s:.1f} s {format_size(fetched)} came from object "
        f"storage and {format_size(hits)} from the cache; {after.waiting} requests of readers wait"
    )
    remedy = (
        "submit it with --plan, so that its loaders announce what they will read; or with --warm, "
        "to load the data first"
    )
    return [slow(seen.name, what, why, remedy)]


def _deletion(seen: JobFacts, for_s: float, loop: LoopFacts) -> Finding:
    why = f"for {format_duration(for_s)}"
    if not loop.runs:
        what = "it should be deleted, but nothing works on it"
        return bad(seen.name, what, f"{why}; {_NO_LOOP}", f"penstock up; its log: {loop.log}")
    if for_s <= _LONG_DELETION_S:
        return note(seen.name, "it is being deleted", why)
    remedy = f"see its log: {seen.log}; and the loop's: {loop.log}"
    return bad(seen.name, "its deletion takes very long", why, remedy)


def _failure(seen: JobFacts, *, by_name: bool) -> Finding:
    message, hint = _split_hint(seen.message)
    instance = message.partition(" ")[0]
    # Without -i the logs of the chief are shown.
    of = f" -i {instance}" if len(seen.instances) > 1 and instance in seen.instances else ""
    logs = f"penstock logs {seen.plain_name} --tail 50{of}{_option(seen.namespace)}"
    why = ", ".join(filter(None, (seen.reason, _ago(seen.ended_s))))
    remedy = f"{hint}; what it printed: {logs}" if hint else logs
    return (bad if by_name else note)(seen.name, f"it failed: {message}", why, remedy)


def _running(seen: JobFacts, loop: LoopFacts, later: JobFacts | None) -> Finding:
    target = f"job {seen.plain_name}{_option(seen.namespace)}"
    then = later or seen
    started = seen.message if seen.running_s is None else f"started {_ago(seen.running_s)}"
    if not seen.kept and not then.kept:
        if then.supervised or loop.runs:
            what = "its processes are gone; its status will follow"
            why = f"{started}; its keeper is gone"
            return note(seen.name, what, why, f"penstock describe {target}")
        what = "its status is running, but its processes are gone"
        why = f"{started}; its keeper and its supervisor are gone, and {_NO_LOOP}"
        return bad(seen.name, what, why, f"penstock up; its log: {seen.log}")
    if seen.lost and then.lost:
        what = "its status is running, but all its instances are gone"
        why = f"{started}; its keeper runs, but none of {then.lost} instances does"
        remedy = f"penstock delete {target}, and submit it again; its log: {seen.log}"
        return bad(seen.name, what, why, remedy)
    if not then.supervised and not loop.runs:
        what = "it is running without its supervisor: its status is not updated"
        why = f"{started}; its supervisor is gone, and {_NO_LOOP}"
        return note(seen.name, what, why, "penstock up")
    return ok(seen.name, "it is running", started)


def _preparing(seen: JobFacts) -> Finding:
    if seen.reason == "Retrying":
        logs = f"penstock logs {seen.plain_name} --tail 50{_option(seen.namespace)}"
        return note(seen.name, "it failed, and is retried", seen.message, logs)
    return ok(seen.name, "it is starting", seen.message)


def _waits_for(seen: JobFacts, one: Awaited) -> Finding:
    if one.is_declared:
        remedy = f"penstock doctor {one.key.name}{_option(one.key.namespace)}"
        return bad(seen.name, "it waits for its data", one.why, remedy)
    remedy = (
        f"apply a Dataset {one.key.name} in the namespace {one.key.namespace}; "
        "`penstock get datasets -A` lists what is declared"
    )
    return bad(seen.name, "it waits for a data set that is not declared", one.why, remedy)


def _queued(seen: JobFacts) -> Finding:
    if seen.too_many:
        what = "it needs more GPUs than this machine has, and will never start"
        remedy = (
            f"penstock delete job {seen.plain_name}{_option(seen.namespace)}, and submit it with "
            "fewer --gpus; to see whether GPUs have disappeared: nvidia-smi"
        )
        return bad(seen.name, what, seen.message, remedy)
    why = "; ".join((seen.message, *seen.holders))
    remedy = "it starts when they are free; to see what others use: penstock top job -A"
    return note(seen.name, "it waits in the queue", why, remedy)


def _notes(seen: JobFacts) -> Iterator[Finding]:
    for reason, message in seen.notes:
        if reason == "NoLimit":
            yield note(seen.name, message, "its keeper reports it", _MISSING_RIGHTS[reason])
        elif reason == "NoNamespace":
            what = "its processes have no namespace of their own"
            yield note(seen.name, what, message, _MISSING_RIGHTS[reason])


# -- wording -----------------------------------------------------------------------------------


def _not_started(name: str, loop: LoopFacts) -> Finding:
    if loop.runs:
        return note(name, _STARTING, "the loop is running")
    what = "it has not started, and nothing will start it"
    return bad(name, what, _NO_LOOP, f"penstock up; its log: {loop.log}")


def _split_hint(message: str) -> tuple[str, str]:
    """Split a condition's message, `WHAT (hint: HINT)`."""
    what, _, hint = message.partition(" (hint: ")
    return what, hint.removesuffix(")")


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{format_duration(max(0.0, seconds))} ago"


def _option(namespace: str) -> str:
    return "" if namespace == "default" else f" -n {namespace}"
