"""Commands and forms that people know from kubectl."""

import json
from pathlib import Path

import pytest

from penstock.api import resources as api
from penstock.reconcile.state import State
from tests.support.datasets import of_folder, ours
from tests.support.mounts import fail, penstock, succeed


def test_what_is_printed_is_what_was_asked_for(bound: Path) -> None:
    assert succeed("get", "dataset", "small", "-o", "jsonpath={.status.mountPath}") == f"{bound}\n"
    assert succeed("get", "ds", "-o", "jsonpath={.items[*].metadata.name}") == "small\n"
    columns = "custom-columns=NAME:.metadata.name,PHASE:.status.phase"
    assert succeed("get", "fluid", "-o", columns).splitlines() == [
        "NAME    PHASE",
        "small   Bound",
        "small   <none>",
    ]
    for form in ("jsonpath={.a", "custom-columns=NAME", "tabel"):
        assert "hint: " in fail("get", "datasets", "-o", form)


def test_events_are_listed_and_a_kind_is_described_whole(bound: Path) -> None:
    title, *rows = succeed("get", "events").splitlines()
    assert title.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert any("Mounted" in row and "dataset/small" in row and str(bound) in row for row in rows)
    events = json.loads(succeed("get", "events", "-o", "json"))["items"]
    assert {"Mounted", "Bound"} <= {one["reason"] for one in events}
    assert succeed("describe", "datasets") == succeed("describe", "dataset", "small")
    assert penstock("describe", "dataloads").stderr.startswith("no dataloads are declared")


def test_create_makes_what_is_new_and_delete_all_removes_it(
    declared: State, source: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "new.yaml"
    manifest.write_text(json.dumps(of_folder("new", source)))
    made = succeed("create", "-f", manifest, "--no-wait")
    assert made == "dataset.penstock.dev/new created\n"
    assert "dataset/default/new exists already" in fail("create", "-f", manifest)
    api.apply(ours("new"))
    assert succeed("delete", "datasets", "--all") == "dataset/new deleted\n"
    assert succeed("delete", "runtimes", "--all") == "penstockruntime/new deleted\n"
    assert declared.all() == []
    assert "penstock delete dataset NAME, or --all" in fail("delete", "dataset")


def test_a_resource_is_changed_in_an_editor(
    bound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i s/64Mi/96Mi/")
    assert succeed("edit", "penstockruntime", "small").endswith("/small configured\n")
    assert api.dataset("small").capacity_bytes == 96 << 20
    assert penstock("edit", "penstockruntime", "small").stderr == "not changed\n"
    monkeypatch.setenv("EDITOR", "sed -i s/tieredstore/tieredstorage/")
    said = fail("edit", "penstockruntime", "small")
    kept = Path(said.rstrip().rpartition(" ")[2])
    assert "tieredstorage" in kept.read_text()
    kept.unlink()


@pytest.mark.parametrize(
    ("verb", "instead"),
    [("scale", "tieredstore"), ("exec", "penstock attach"), ("rollout", "penstock up --restart")],
)
def test_a_verb_without_a_meaning_on_one_machine_names_its_replacement(
    verb: str, instead: str
) -> None:
    said = fail(verb, "dataset", "small")
    assert instead in said.partition("hint: ")[2]
