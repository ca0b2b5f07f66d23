"""Why a declared data set or operation is not what it should be."""

from collections.abc import Iterator, Sequence

from penstock.doctor.facts.declared import DatasetSeen, LoopSeen, OperationSeen
from penstock.doctor.findings import Finding, ok
from penstock.doctor.rules.machine import SUBJECT as THIS_MACHINE
from penstock.units import format_duration

_UNREACHABLE = 3  # the exit code of an error of storage
_LONG_DELETION_S = 60.0
_LONG_SILENCE_S = 60.0
_STANDING = ("Cron", "OnEvent")


def judge_dataset(seen: DatasetSeen, loop: LoopSeen) -> list[Finding]:
    return [
        *_phase(seen, loop),
        *_deletion(seen),
        *_update(seen),
        *_second(seen),
        *_warnings(seen),
    ]


def judge_loop(
    loop: LoopSeen, unsettled: Sequence[str], operations: Sequence[OperationSeen]
) -> list[Finding]:
    """Is somebody there who does what is left to do?"""
    if loop.runs:
        return [ok(THIS_MACHINE, "the loop runs")]
    findings: list[Finding] = []
    standing = [one for one in operations if one.policy in _STANDING]
    if standing:
        names = ", ".join(one.name for one in standing)
        findings.append(
            Finding(
                "bad",
                names,
                "nobody begins it when it is due: `penstock serve` does not run",
                f"its policy is {standing[0].policy}",
                "penstock serve; or as a unit: penstock serve --unit "
                "> /etc/systemd/system/penstock.service",
            )
        )
    if unsettled and loop.last_words:
        findings.append(
            Finding(
                "bad",
                "the loop",
                "it ended before all was done",
                f"left: {', '.join(unsettled)}; its last words: {loop.last_words}",
                f"mend that, then penstock up; its log: {loop.log}",
            )
        )
    return findings or [ok(THIS_MACHINE, "nothing is left to do for the loop")]


def judge_operation(
    seen: OperationSeen, loop: LoopSeen, later: OperationSeen | None = None
) -> list[Finding]:
    """`later`: the same, looked at again."""
    describe = f"penstock describe {seen.kind.lower()} {seen.plain_name}{_namespace(seen)}"
    if seen.phase == "Failed":
        return [
            Finding(
                "bad",
                seen.name,
                f"it failed: {seen.message}",
                "its last condition says so",
                f"mend that, delete it and apply it again; its log: {seen.log}",
            )
        ]
    if seen.phase == "Executing":
        return _executing(seen, loop, later)
    if seen.phase == "Complete":
        return [ok(seen.name, "it is complete", seen.message)]
    if seen.unbound:
        names = ", ".join(seen.unbound)
        return [
            Finding(
                "bad",
                seen.name,
                f"it waits until the data set {names} is bound",
                f"{names} is not",
                f"penstock doctor {seen.unbound[0]}",
            )
        ]
    if seen.waits_for:
        return [Finding("note", seen.name, "it has not begun yet", seen.waits_for, describe)]
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
    return [Finding("note", seen.name, "it is about to begin", "the loop runs")]


def _executing(seen: OperationSeen, loop: LoopSeen, later: OperationSeen | None) -> list[Finding]:
    how = f"begun {format_duration(seen.running_s or 0)} ago"
    if not seen.runs and not loop.runs:
        return [
            Finding(
                "bad",
                seen.name,
                "its process is gone, and nobody is there to go on with it",
                how,
                f"penstock up; its log: {seen.log}",
            )
        ]
    silent_s = (later or seen).silent_s or 0.0
    if later is not None and later.progress == seen.progress and silent_s > _LONG_SILENCE_S:
        return [
            Finding(
                "slow",
                seen.name,
                "it does not get on",
                f"{how}; nothing written for {format_duration(silent_s)}, at "
                f"{_far(seen)} all the while",
                f"its log: {seen.log}; and how its store answers: penstock doctor",
            )
        ]
    return [ok(seen.name, "it is at work", f"{how}, at {_far(later or seen)}")]


def _far(seen: OperationSeen) -> str:
    progress = seen.progress or {}
    done, whole = progress.get("bytes"), progress.get("of")
    if isinstance(done, int) and isinstance(whole, int) and whole:
        return f"{100 * done // whole}%"
    return "no number"


# -- one rule each -------------------------------------------------------------------------------


def _phase(seen: DatasetSeen, loop: LoopSeen) -> Iterator[Finding]:
    name, up = seen.name, f"penstock up {seen.plain_name}{_namespace(seen)}"
    ready = next((one for one in seen.conditions if one["type"] == "Ready"), None)
    if seen.deleting_s is not None:
        return
    if seen.trouble is not None:
        retry = ""
        if seen.retry_in_s is not None and seen.retry_in_s > 0:
            retry = f"; tried again in {format_duration(seen.retry_in_s)} if the loop runs"
        hint = seen.trouble.get("hint") or "mend that"
        what = "it is bound, but a change to it failed" if seen.phase == "Bound" else "not bound"
        yield Finding(
            "bad",
            name,
            f"{what}: {seen.trouble['what']}",
            f"phase {seen.phase}{retry}",
            f"{hint}; then {up}",
            unreachable=seen.trouble.get("exit_code") == _UNREACHABLE,
        )
    elif not seen.has_runtime:
        yield Finding(
            "bad",
            name,
            "it waits for a runtime",
            "no runtime of its name and namespace is declared",
            "apply one: kind PenstockRuntime, name " + seen.plain_name,
        )
    elif not seen.settled:
        if loop.runs:
            yield Finding(
                "note",
                name,
                "it is being made",
                f"phase {seen.phase or 'none yet'}",
                f"penstock get dataset {seen.plain_name}{_namespace(seen)} -w",
            )
        else:
            yield Finding(
                "bad",
                name,
                "it is not as it was declared, and nobody works on it",
                f"phase {seen.phase or 'none yet'}; the loop does not run",
                f"{up}; its log: {loop.log}",
            )
    elif ready is not None and ready["status"] == "False":
        message, _, hint = ready["message"].partition(" (hint: ")
        yield Finding(
            "bad",
            name,
            f"not bound: {message}",
            f"{ready['reason']}",
            f"{hint.removesuffix(')')}; then {up}" if hint else up,
        )
    elif seen.phase == "Bound" and not seen.mounted:
        yield Finding(
            "bad",
            name,
            "it should be mounted, and is not",
            f"{seen.mountpoint} is not in the mount table",
            up,
        )
    elif seen.phase == "Bound":
        yield ok(name, "it is bound", f"at {seen.mountpoint}")
    else:
        yield Finding("bad", name, "it is not bound", f"phase {seen.phase}", up)


def _deletion(seen: DatasetSeen) -> Iterator[Finding]:
    if seen.deleting_s is None:
        return
    severity = "bad" if seen.deleting_s > _LONG_DELETION_S else "note"
    yield Finding(
        severity,
        seen.name,
        "it is being deleted",
        f"for {format_duration(seen.deleting_s)}",
        f"penstock delete dataset {seen.plain_name}{_namespace(seen)} --force takes it from under "
        "those who use it"
        if severity == "bad"
        else "",
    )


def _update(seen: DatasetSeen) -> Iterator[Finding]:
    for one in seen.conditions:
        if one["type"] == "UpdateReady" and one["status"] == "False":
            message, _, hint = one["message"].partition(" (hint: ")
            yield Finding(
                "note",
                seen.name,
                f"a change waits for a restart: {message}",
                one["reason"],
                hint.removesuffix(")").strip("`"),
            )
        elif one["type"] == "FieldsWithoutEffect":
            yield ok(seen.name, "some fields have no effect here", one["message"])


def _second(seen: DatasetSeen) -> Iterator[Finding]:
    for kind in seen.second_runtimes:
        yield Finding(
            "note",
            seen.name,
            f"the {kind} of its name has no effect",
            "it has a runtime already",
            f"penstock delete {kind.lower()} {seen.plain_name}{_namespace(seen)}",
        )


def _warnings(seen: DatasetSeen) -> Iterator[Finding]:
    for event in seen.warnings[-3:]:
        yield ok(
            seen.name, f"an earlier warning, {event.count} times: {event.reason}", event.message
        )


def _namespace(seen: DatasetSeen | OperationSeen) -> str:
    return "" if seen.namespace == "default" else f" -n {seen.namespace}"
