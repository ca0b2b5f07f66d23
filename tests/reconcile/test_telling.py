"""The order in which states are told: what others wait for comes last."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.fluid.plan import MountPlan
from penstock.reconcile import dataset_phases
from penstock.reconcile.conditions import FAILED
from penstock.reconcile.dataset_phases import Cause, Update
from penstock.reconcile.datasets import write_updates
from penstock.reconcile.snapshot import Pair, Stored
from penstock.settings import MountSettings
from penstock.specs.kinds import ResourceKey
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
RUNTIME_MODEL: Any = model_of(RUNTIME.manifest)
PLAN = MountPlan(MODEL, RUNTIME_MODEL, MountSettings((), Path("/mnt")), [], [])


@pytest.mark.parametrize(
    ("updates", "waited_for"),
    [
        (
            dataset_phases.bound(DATASET, RUNTIME, "print", PLAN, [], None, 0.0),
            ("Dataset", "print"),
        ),
        (
            dataset_phases.unbound(
                DATASET,
                RUNTIME,
                "print",
                Cause(FAILED, "Reason", "why"),
                None,
                0.0,
                still_served=False,
            ),
            ("Dataset", "print"),
        ),
        (
            [dataset_phases.without_dataset(RUNTIME, "print", 0.0)],
            ("AlluxioRuntime", "print"),
        ),
        (
            [
                dataset_phases.second_runtime(
                    RUNTIME,
                    Pair("default", "imagenet", DATASET, stored("JindoRuntime"), (RUNTIME,)),
                )
            ],
            ("AlluxioRuntime", "second"),
        ),
    ],
    ids=["bound", "unbound", "lone", "second"],
)
def test_waiters_continue_only_after_every_state_is_published(
    updates: list[Update], waited_for: tuple[str, str]
) -> None:
    state = Mock()
    write_updates(state, updates)
    *before, last = state.mock_calls
    assert before
    assert (last.args[0], last.kwargs["note"]["settled"]) == waited_for
