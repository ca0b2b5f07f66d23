"""Secrets of declared data sets are nowhere in the clear: not in what is printed, kept, logged or
told to a process, whatever is asked and whatever goes wrong."""

import base64
import logging
from pathlib import Path

import pytest
import yaml

from penstock.api import resources as api
from penstock.errors import PenstockError
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support.datasets import Manifests, dataset, fill, mount, ours, path_of
from tests.support.jobs import job
from tests.support.leaks import Seen, spellings
from tests.support.s3 import ACCESS_KEY, KEYS, S3, SECRET_KEY
from tests.support.waiting import wait_until

# With what a quoting, an encoding or a pattern for base64 might stumble over.
OTHER = "not-a-key/of+this=store but:a&secret"
WRONG = "wrong-and-yet/a+secret=of~someone"
SECRETS = set().union(*map(spellings, (SECRET_KEY, OTHER, WRONG)))


@pytest.fixture
def seen(
    declared: State,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Seen:
    monkeypatch.setenv("PENSTOCK_LOG", "DEBUG")
    caplog.set_level(logging.DEBUG, logger="penstock")
    return Seen([state, tmp_path / "cache"])


@pytest.fixture
def manifests(server: S3, tmp_path: Path) -> Manifests:
    for name in ("open", "sealed"):
        fill(server, name, {"file": b"x" * 300_000})
    text = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mysecret"},
        "stringData": {"fs.oss.accessKeyId": ACCESS_KEY, "unused": OTHER},
        "data": {"fs.oss.accessKeySecret": base64.b64encode(SECRET_KEY.encode()).decode()},
    }
    plain = mount(server, "open", encryptOptions=[])
    plain["options"] |= {"fs.oss.accessKeyId": ACCESS_KEY, "fs.oss.accessKeySecret": SECRET_KEY}
    both = dataset("both", server, plain, mount(server, "sealed"))
    both["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": f'{{"secret": "{SECRET_KEY}"}}'
    }
    return [text, both, ours("both", tmp_path / "cache")]


def ask_everything(seen: Seen) -> None:
    for output in ("wide", "yaml", "json"):
        seen.run("get", "all", "-o", output)
        seen.run("get", "secrets", "-o", output)
    for kind, name in (("dataset", "both"), ("secret", "mysecret"), ("penstockruntime", "both")):
        seen.run("describe", kind, name)
        if (kind, name) in {(one.kind.lower(), one.name) for one in api.get_all()}:
            found = api.get(kind, name)
            seen.said += [repr(found), str(found.as_dict())]
    for stored in State().all():
        seen.said += [repr(stored), str(stored.manifest), str(State().events(stored.uid))]
    seen.note_processes()


@pytest.mark.usefixtures("loop_process")
def test_secrets_of_a_used_data_set_are_nowhere(
    seen: Seen, manifests: Manifests, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    assert seen.run("validate", "-f", file) == 0
    assert seen.run("apply", "-f", file, "--dry-run") == 0
    assert seen.run("apply", "-f", file) == 0, seen.said[-3:]
    path = path_of("both")
    for name in ("open", "sealed"):
        assert (path / name / "file").read_bytes() == b"x" * 300_000
    assert seen.run("load", "both") == 0
    ask_everything(seen)
    for words in (
        ["stats", path, "-o", "json"],
        ["stats"],
        ["doctor", path, "-o", "json"],
        ["refresh", path],
        ["up", "--restart", "both"],
    ):
        seen.run(*words)
    # What was printed, applied again, means the secrets that are kept.
    printed = tmp_path / "printed.yaml"
    printed.write_text(yaml.safe_dump(api.dataset("both").as_dict()))
    assert seen.run("apply", "-f", printed) == 0
    assert seen.run("get", "secrets", "-o", "wide") == 0
    seen.said += [record.getMessage() for record in caplog.records]
    assert seen.places_of(*SECRETS) == []
    logs = [text for where, text in seen.texts() if where.endswith((".log", "/log"))]
    assert len(logs) >= 3, "those of the loop, the mount and the load were looked into"
    # And they are there: taken from the state they open the store once more.
    assert (path_of("both") / "open" / "file").read_bytes() == b"x" * 300_000


def test_secrets_of_a_rejected_data_set_are_nowhere(
    seen: Seen, manifests: Manifests, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    options = manifests[1]["spec"]["mounts"][0]["options"]
    # A mistake that only a plan shows; for others see tests/specs/test_secrets.py.
    right, options["fs.oss.endpoint"] = options["fs.oss.endpoint"], f"http://u:{SECRET_KEY}@host"
    file.write_text(yaml.safe_dump_all(manifests))
    assert seen.run("validate", "-f", file) == 0
    assert seen.run("apply", "-f", file) == 2
    ask_everything(seen)
    # Keys that the store does not take.
    manifests[0]["data"]["fs.oss.accessKeySecret"] = base64.b64encode(WRONG.encode()).decode()
    options |= {"fs.oss.endpoint": right, "fs.oss.accessKeySecret": WRONG}
    file.write_text(yaml.safe_dump_all(manifests))
    assert seen.run("apply", "-f", file) == 2
    ask_everything(seen)
    with pytest.raises(PenstockError) as refused:
        api.apply(file)
    seen.said += [repr(refused.value), str(refused.value), str(refused.value.hint)]
    assert seen.run("up") == 2
    assert seen.run("load", "both", "--no-wait") == 2
    ask_everything(seen)
    assert seen.places_of(*SECRETS) == []


@pytest.mark.usefixtures("loop_process")
def test_keys_of_the_caller_of_apply_are_nowhere(
    seen: Seen, declared: State, server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened with those of the environment, which processes hand on in memory."""
    fill(server, "plain", {"file": b"the bytes"})
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOME_SERVICE_TOKEN", OTHER)
    data = [{"dataset": "plain", "mountPath": "/plain"}]
    script = "cat /plain/plain/file; env; sleep 1000"
    api.apply(
        [
            dataset("plain", server, mount(server, "plain", encryptOptions=[])),
            ours("plain", tmp_path / "cache"),
            job("net", script, data=data),
        ]
    )

    def prints() -> str:
        seen.note_processes()
        found = declared.find(ResourceKey("TrainingJob", "default", "net"))
        assert found is not None
        logs = (declared.folder / "jobs" / found.uid / "logs").glob("*.log")
        return "".join(log.read_text() for log in logs)

    wait_until(lambda: "the bytes" in prints())
    for module in (
        "reconcile.loop",
        "jobs.job_supervisor",
        "jobs.attempt_keeper",
        "cli.supervise",
        "daemon.serve",
    ):
        assert any(f"-Pm penstock.{module} " in one for one in seen.said), f"{module} was not seen"
    assert seen.places_of(*SECRETS) == []
