"""Declared resources as the doctor's rules see them, all of them well."""

from penstock.doctor.facts.declared import LoopFacts
from penstock.doctor.findings import Finding
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from penstock.specs.secret_fields import take_secrets
from tests.support.datasets import stored

AT_WORK = LoopFacts(runs=True, log="/l", last_error="")
AWAY = LoopFacts(runs=False, log="/l/loop.log", last_error="")


def only(findings: list[Finding], severity: str = "bad") -> Finding:
    """The one finding that is not `ok`, which has this severity."""
    (found,) = [one for one in findings if one.severity != "ok"]
    assert found.severity == severity
    return found


def assert_told(findings: list[Finding], severity: str, says: str) -> None:
    """There is one finding of this severity, with all these words, which "|" separates."""
    found = only(findings, severity)
    for words in says.split("|"):
        assert words in f"{found.what}\n{found.why}\n{found.remedy}"


def put(kind: str, name: str, namespace: str = "default", **body: object) -> str:
    """Write a resource into the state, which no loop looks at; return its uid."""
    state, key = State(), ResourceKey(kind, namespace, name)
    metadata = {"name": name, "namespace": namespace}
    state.put(key, *take_secrets({"apiVersion": "v1", "kind": kind, "metadata": metadata, **body}))
    return stored(state, key).uid
