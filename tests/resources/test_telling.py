"""The order in which states are told: what others wait for comes last."""

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.daemon.settings import MountSettings
from penstock.resources import telling
from penstock.resources.conditions import FAILED
from penstock.resources.pairs import Pair
from penstock.resources.state import ResourceKey, State, Stored
from penstock.resources.telling import Telling, Trouble
from penstock.resources.translate.plan import MountPlan


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def observe(self, uid: str, *, status: Any = None, note: Any = None) -> None:
        self.told.append((uid, (note or {}).get("settled")))

    def add_event(self, uid: str, *_: object, kind: str = "Normal") -> None:
        self.told.append((uid, kind))


def stored(kind: str) -> Stored:
    key = ResourceKey(kind, "default", "imagenet")
    manifest = {
        "apiVersion": "data.fluid.io/v1alpha1", "kind": kind, "spec": {},
        "metadata": {"name": key.name},
    }  # fmt: skip
    return Stored(kind, key, 1, manifest, 0.0, None, {}, {}, None)


DATASET, RUNTIME = stored("Dataset"), stored("AlluxioRuntime")
PLAN = MountPlan(MountSettings((), Path("/mnt")), [], [])


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
    monkeypatch.setattr(telling, "ask_brief", lambda _mountpoint: None)
    recorder = Recorder()
    tell(Telling(cast("State", recorder)))
    assert len(recorder.told) > 1
    assert recorder.told[-1] == waited_for
