"""The values that the page of `penstock ui` shows, of real data sets, mounts and jobs."""

import json
import os
import signal
from pathlib import Path

import pytest

from penstock.api import resources as api
from penstock.errors import PenstockError
from penstock.ui import overview as shown
from penstock.ui.results import Results
from tests.support.datasets import dataset, fill, mount, of_folder, ours, secret
from tests.support.jobs import Jobs
from tests.support.mounts import Mounter
from tests.support.pages import serving
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

SECTIONS = ("datasets", "mounts", "jobs", "operations", "runs")


def test_with_nothing_declared_every_section_is_empty() -> None:
    with serving() as page:
        found = page.overview()
    assert {name: found[name] for name in SECTIONS} == {name: {"items": []} for name in SECTIONS}


def test_a_mount_shows_its_counts(s3: S3, mounter: Mounter) -> None:
    fill(s3, "ui-mount", {f"{number}": b"x" * 1000 for number in range(8)})
    one = mounter("s3://ui-mount", "--endpoint", s3.endpoint)
    with serving() as page:
        (before,) = page.items("mounts")
        assert (before["files"], before["bytes"], before["read_bytes"]) == (8, 8000, 0)
        assert before["state"] == "serving"
        assert (before["mountpoint"], before["source"]) == (str(one.path), "s3://ui-mount")
        assert len(read_tree(one.path)) == 8
        # Answers may be half a second old.
        wait_until(lambda: page.items("mounts")[0]["cached_bytes"] == 8000)
        (after,) = page.items("mounts")
    stats = one.stats()
    assert after["read_bytes"] == stats["read_bytes"]
    assert after["store_bytes"] == stats["store_bytes"] == 8000
    assert after["store_requests"] == stats["store_requests"]
    assert after["pushed_bytes"] == stats["pushed_bytes"]
    assert after["reads"] == stats["requests"]["READ"]
    assert (after["pid"], after["problem"], after["plans"]) == (stats["pid"], "", [])


def test_a_mount_that_does_not_answer_leaves_the_others_as_they_are(
    tmp_path: Path, mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "_ANSWERS_WITHIN_S", 0.5)
    write_tree(tmp_path / "data", {"file": b"bytes"})
    silent, other = (mounter(f"file://{tmp_path / 'data'}", "--watchdog", "60s") for _ in range(2))
    pid = silent.stats()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        found = {one["mountpoint"]: one for one in shown.overview(Results())["mounts"]["items"]}
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found[str(other.path)]["state"] == "serving"
    assert found[str(silent.path)] == {
        "id": str(silent.path),
        "mountpoint": str(silent.path),
        "state": "silent",
        "problem": "the server of this mount does not answer (timed out)",
        "hint": f"penstock doctor {silent.path}",
    }


def test_a_data_set_shows_what_is_cached_and_what_is_wrong(
    server: S3, jobs: Jobs, tmp_path: Path
) -> None:
    fill(server, "ui-good", {"a": b"alpha", "b": b"beta"})
    root = mount(server, "ui-good", path="/")
    api.apply([secret(), dataset("good", server, root), ours("good", tmp_path / "cache")])
    api.load("good", wait=True)
    with pytest.raises(PenstockError):
        api.apply([dataset("bad", server, mount(server, "ui-none", path="/")), ours("bad")])
    api.apply(of_folder("alone", tmp_path / "cache"))
    jobs.run("fails", "echo out; exit 3", data=[{"dataset": "good", "mountPath": "/ui-data"}])
    jobs.submit("waits", "true", data=[{"dataset": "alone", "mountPath": "/ui-data"}])
    jobs.wait("waits", lambda found: found.status.get("reason") == "DataNotReady")
    with serving() as page:
        found = page.overview()
        datasets = {one["name"]: one for one in found["datasets"]["items"]}
        good, bad = datasets["good"], datasets["bad"]
        assert (good["phase"], good["files"], good["bytes"], good["cached_bytes"]) == (
            "Bound", 2, 9, 9,
        )  # fmt: skip
        assert (good["problem"], good["mountpoint"]) == ("", str(api.dataset("good").path))
        assert (bad["phase"], bad["mountpoint"]) == ("Failed", None)
        assert bad["problem"].endswith("no such bucket, container or folder")
        assert bad["hint"].startswith("check its name")
        assert (datasets["alone"]["phase"], datasets["alone"]["hint"]) == (
            "NotBound",
            "penstock doctor alone",
        )
        fails, waits = ({one["name"]: one for one in found["jobs"]["items"]}[name]
                        for name in ("fails", "waits"))  # fmt: skip
        assert (fails["phase"], fails["data"], fails["waits_for_data"]) == (
            "FAILED",
            ["good"],
            False,
        )
        assert fails["problem"].startswith("worker-0 ended with exit code 3")
        assert (waits["phase"], waits["waits_for_data"], waits["loops"]) == ("PENDING", True, None)
        assert [one["name"] for one in found["jobs"]["items"]] == ["waits", "fails"]
        (load,) = found["operations"]["items"]
        assert (load["kind"], load["dataset"], load["phase"]) == ("DataLoad", "good", "Complete")
        log = page.get(f"log?uid={fails['id']}&instance={fails['instances'][0]}")
        assert json.loads(log.body) == {
            "text": "out\n", "rest": "", "end": 4, "begins_anew": True, "phase": "FAILED",
        }  # fmt: skip
        for wrong in ("uid=x", f"uid={fails['id']}&instance=x", f"uid={fails['id']}&from=-1", ""):
            assert page.get(f"log?{wrong}").status == 404, wrong
        everything = page.get("overview").body + log.body
    assert SECRET_KEY not in everything
    assert ACCESS_KEY not in everything


def test_a_section_that_cannot_be_collected_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise PenstockError("broken by AKIAIOSFODNN7EXAMPLE", hint="mend it")

    monkeypatch.setattr(shown, "_mounts", fail)
    found = shown.overview(Results())
    assert found["mounts"] == {"items": [], "error": "broken by …", "hint": "mend it"}
    assert found["datasets"] == {"items": []}
