"""Declared resources as the doctor's rules see them, all of them well."""

from penstock.resources.diagnosis.facts.declared import LoopSeen
from penstock.resources.diagnosis.finding import Finding

AT_WORK = LoopSeen(runs=True, log="/l", last_words="")
AWAY = LoopSeen(runs=False, log="/l/loop.log", last_words="")


def only(findings: list[Finding], severity: str = "bad") -> Finding:
    """The one finding that is not `ok`, which has this severity."""
    (found,) = [one for one in findings if one.severity != "ok"]
    assert found.severity == severity
    return found
