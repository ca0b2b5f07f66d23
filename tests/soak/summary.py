"""What happened in a soak, what readers saw of it, and whether docs/semantics.md promises that."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.soak.crowd import Findings
from tests.support.faults import Fault

_MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    seed: int
    minutes: float
    findings: Findings
    injected: Counter[Fault]
    requests: int
    done: Counter[str]  # what was done to it, besides the store's faults
    restarts: dict[str, int]
    supervisors: dict[str, str]
    leftovers: list[str]
    broken: list[str]  # the soak's own threads

    @property
    def failures(self) -> list[str]:
        found = self.findings
        kills = {mode: self.done[f"kill -9 ({mode})"] for mode in self.restarts}
        return [
            *(f"wrong bytes: {wrong}" for wrong in found.wrong[:5]),
            *(f"an error that is not promised: {event}" for event in found.unpromised[:5]),
            *([f"{found.hung} readers hang"] if found.hung else []),
            # Servers that ended without being killed: a crash that readers did not notice.
            *(f"{mode}: {count} restarts after {kills[mode]} kills"
              for mode, count in self.restarts.items() if count != kills[mode]),
            *(f"a reader ended: {line}" for line in found.ended),
            *(f"left behind: {what}" for what in self.leftovers),
            *(f"the soak itself: {error}" for error in self.broken),
        ]  # fmt: skip


def write(outcome: Outcome) -> str:
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    found, failures = outcome.findings, outcome.failures
    yield f"Soak of {outcome.minutes:g} minutes, seed {outcome.seed}: " + (
        "FAILED" if failures else "0 wrong bytes, no error that is not promised"
    )
    yield f"16 readers: {found.operations:,} operations, {found.bytes / _MIB:,.0f} MiB"
    yield f"longest pause of a reader: {found.longest_pause_s:.2f} s"
    yield f"errors that readers saw: {_counts(found.errors)}"
    yield f"of {outcome.requests:,} requests the store failed: {_counts(outcome.injected)}"
    yield f"done to it: {_counts(outcome.done)}"
    for mode, described in outcome.supervisors.items():
        yield f"supervisor ({mode}): {described}"
    yield f"left behind: {', '.join(outcome.leftovers) or 'nothing'}"
    for failure in failures:
        yield f"FAILED: {failure}"[:400]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
