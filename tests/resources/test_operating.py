"""Operations as the loop sees them, at the moments at which they begin and end."""

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.daemon import locks
from penstock.resources import operating
from penstock.resources.conditions import BOUND, COMPLETE, EXECUTING
from penstock.resources.operating import Operating
from penstock.resources.pairs import World
from penstock.resources.state import State, Stored
from penstock.specs.keys import ResourceKey

DATASET = ResourceKey("Dataset", "default", "set")
LOAD = ResourceKey("DataLoad", "default", "load")


@pytest.fixture
def load() -> Stored:
    """Of a data set that is bound, as far as the state says."""
    state = State()
    api_version = "data.fluid.io/v1alpha1"
    for key, spec in ((DATASET, {"mounts": []}), (LOAD, {"dataset": {"name": "set"}})):
        metadata = {"name": key.name, "namespace": key.namespace}
        manifest = {"apiVersion": api_version, "kind": key.kind, "metadata": metadata, "spec": spec}
        state.put(key, manifest, {})
    state.observe(_find(state, DATASET).uid, status={"phase": BOUND})
    return _find(state, LOAD)


def test_one_that_ended_while_the_loop_looked_elsewhere_is_not_begun_again(
    load: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    state.observe(load.uid, status={"phase": EXECUTING})
    before = World.read(state)
    Operating(state).finish(load, COMPLETE, "DataLoadComplete", "done")
    begun: list[Any] = []
    monkeypatch.setattr(operating.subprocess, "Popen", lambda *_, **__: begun.append(1))
    assert Operating(state).look(before, leaving=False)
    assert begun == []
    assert _find(state, LOAD).status["phase"] == COMPLETE


def test_one_that_is_done_at_once_stays_done(load: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State()

    class Quick:
        pid = 1

        def __init__(self, *_: Any, **__: Any) -> None:
            Operating(state).finish(load, COMPLETE, "DataLoadComplete", "done")

    monkeypatch.setattr(operating.subprocess, "Popen", Quick)
    Operating(state).look(World.read(state), leaving=False)
    assert _find(state, LOAD).status["phase"] == COMPLETE


def test_one_to_be_removed_that_has_not_ended_keeps_the_loop_at_work(
    load: Stored, state: Path
) -> None:
    resources = State()
    resources.want_deleted(load.uid, {"at_s": time.time()})
    folder = Operating(resources).folder(load.uid)
    folder.mkdir(parents=True)
    held = locks.take(folder / "lock")
    assert held is not None
    assert Operating(resources).look(World.read(resources), leaving=False)
    assert resources.find(LOAD) is not None
    locks.let_go(folder / "lock", held)
    assert not Operating(resources).look(World.read(resources), leaving=False)
    assert resources.find(LOAD) is None
    assert not folder.exists()


def _find(state: State, key: ResourceKey) -> Stored:
    found = state.find(key)
    assert found is not None
    return found
