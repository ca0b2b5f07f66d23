"""One page about a soak: what happened, what readers saw of it, and whether that was promised."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.kinds import Fault
from tests.soak.crowd import Findings
from tests.soak.watch import Course, sparkline

# What docs/semantics.md promises a reader, and when.
PROMISES = {
    "ENOENT": "the file was deleted, as far as the last refresh knows",
    "ESTALE": "its version was rewritten or deleted",
    "EIO": "the store was away for longer than the deadline",
    "SIGBUS": "as ESTALE or EIO, in a mapped page",
}
_MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    seed: int
    minutes: float
    began_s: float
    findings: Findings
    injected: Counter[Fault]
    requests: int
    done: Counter[str]  # what was done to it, besides the store's faults
    courses: dict[str, Course]
    restarts: dict[str, int]
    leftovers: list[str]
    broken: list[str]  # the soak's own threads

    @property
    def failures(self) -> list[str]:
        found = self.findings
        return [
            *(f"wrong bytes: {wrong}" for wrong in found.wrong[:5]),
            *(f"an error that is not promised: {event}" for event in found.unpromised[:5]),
            *([f"{found.hung} readers hang"] if found.hung else []),
            *self._uncalled_for_ends,
            *(f"a reader ended: {line}" for line in found.ended),
            *(f"left behind: {what}" for what in self.leftovers),
            *(f"the soak itself: {error}" for error in self.broken),
        ]

    @property
    def _uncalled_for_ends(self) -> list[str]:
        """Servers that ended without being killed: a crash that readers did not notice."""
        kills = {mode: self.done[f"kill -9 ({mode})"] for mode in self.restarts}
        return [
            f"{mode}: {count} restarts after {kills[mode]} kills"
            for mode, count in self.restarts.items()
            if count != kills[mode]
        ]


def write(outcome: Outcome) -> str:
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    found, failures = outcome.findings, outcome.failures
    yield f"Soak of {outcome.minutes:g} minutes, seed {outcome.seed}: " + (
        "FAILED" if failures else "0 wrong bytes, no error that is not promised"
    )
    yield ""
    yield f"readers      16: {found.operations:,} operations, {found.bytes / _MIB:,.0f} MiB"
    at = max(0.0, found.longest_pause_at_s - outcome.began_s)
    yield f"longest pause of a reader  {found.longest_pause_s:.2f} s, {at:.0f} s after the start"
    yield f"wrong bytes  {len(found.wrong)}"
    yield "errors seen by readers     promised  not promised"
    for name in sorted({name for name, _ in found.errors} | set(PROMISES)):
        yield (
            f"  {name:<10}{found.errors[name, True]:>23,}{found.errors[name, False]:>14,}  "
            f"{PROMISES.get(name, '')}"
        )
    yield ""
    faults, requests = outcome.injected.total(), outcome.requests
    yield f"store faults {faults:,} of {requests:,} requests ({faults / max(1, requests):.0%})"
    yield from _in_columns({kind.value: count for kind, count in outcome.injected.items()})
    yield "done to it"
    yield from _in_columns(outcome.done)
    yield ""
    for mode, course in outcome.courses.items():
        yield f"{mode}: {len(course.pids)} servers seen, {outcome.restarts[mode]} restarts"
        yield _course("memory", course.memory_bytes, _MIB, " MiB")
        yield _course("descriptors", course.descriptors, 1, "")
        yield _course("supervisor", course.supervisor_bytes, _MIB, " MiB")
    yield f"left behind  {', '.join(outcome.leftovers) or 'nothing'}"
    for failure in failures:
        yield f"FAILED: {failure}"[:400]


def _in_columns(counts: dict[str, int] | Counter[str]) -> Iterator[str]:
    words = [f"{name} {count:,}" for name, count in sorted(counts.items()) if count]
    for at in range(0, len(words), 3):
        yield "  " + "".join(f"{word:<32}" for word in words[at : at + 3]).rstrip()


def _course(what: str, values: list[int], unit: int, name: str) -> str:
    if not values:
        return f"  {what:<12}not seen"
    most, last = (f"{value // unit}{name}" for value in (max(values), values[-1]))
    return f"  {what:<12}{sparkline(values)}  most {most}, last {last}"
