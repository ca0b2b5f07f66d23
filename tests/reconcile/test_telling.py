"""The order in which states are told: what others wait for comes last."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.fluid.plan import MountPlan
from penstock.reconcile import status
from penstock.reconcile.conditions import FAILED
from penstock.reconcile.snapshot import Pair, Stored
from penstock.reconcile.state import ResourceKey
from penstock.reconcile.status import StatusWriter, Trouble
from penstock.settings import MountSettings
from penstock.specs.models import model_of


def stored(kind: str) -> Stored:
    key = ResourceKey(kind, "default", "imagenet")
    manifest = {
        "apiVersion": "data.fluid.io/v1alpha1",
        "kind": kind,
        "spec": {},
        "metadata": {"name": key.name},
    }
    return Stored(kind, key, 1, manifest, 0.0, None, {}, {}, None)


DATASET, RUNTIME = stored("Dataset"), stored("AlluxioRuntime")
MODEL: Any = model_of(DATASET.manifest)
PLAN = MountPlan(MODEL, MountSettings((), Path("/mnt")), [], [])


@pytest.mark.parametrize(
    ("tell", "waited_for"),
    [
        (lambda one: one.bound(DATASET, RUNTIME, "print", PLAN, []), ("Dataset", "print")),
        (
            lambda one: one.unbound(DATASET, RUNTIME, "print", Trouble(FAILED, "Reason", "why")),
            ("Dataset", "print"),
        ),
        (lambda one: one.lone(RUNTIME, "print"), ("AlluxioRuntime", "print")),
        (
            lambda one: one.second(
                RUNTIME, Pair("default", "imagenet", DATASET, stored("JindoRuntime"), (RUNTIME,))
            ),
            ("AlluxioRuntime", "second"),
        ),
    ],
    ids=["bound", "unbound", "lone", "second"],
)
def test_whoever_waits_goes_on_when_all_is_told(
    monkeypatch: pytest.MonkeyPatch, tell: Any, waited_for: tuple[str, str]
) -> None:
    monkeypatch.setattr(status, "ask_brief", lambda _mountpoint: None)
    state = Mock()
    tell(StatusWriter(state))
    *before, last = state.mock_calls
    assert before
    assert (last.args[0], last.kwargs["note"]["settled"]) == waited_for
