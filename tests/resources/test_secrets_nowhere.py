"""Secrets of declared data sets are nowhere in the clear: not in what is printed, kept, logged or
told to a process, whatever is asked and whatever goes wrong."""

import base64
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from penstock import api
from penstock.errors import PenstockError
from penstock.resources.state import State
from tests.support.datasets import dataset, fill, mount, ours, path_of, processes_of
from tests.support.leaks import Seen
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

# With what a quoting, an encoding or a pattern for base64 might stumble over.
OTHER = "not-a-key/of+this=store but:a&secret"
WRONG = "wrong-and-yet/a+secret=of~someone"


def forms(value: str) -> Iterator[str]:
    yield value
    yield quote(value)
    yield quote(value, safe="")
    for start in range(3):  # base64 of it, wherever it stands in a longer text
        whole = base64.b64encode(b"x" * start + value.encode()).decode()
        yield whole[4:-4] if start else whole.rstrip("=")[:-1]
    yield value.encode().hex()


SECRETS = [form for value in (SECRET_KEY, OTHER, WRONG) for form in forms(value)]


@pytest.fixture
def seen(
    declared: State, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Seen:  # fmt: skip
    monkeypatch.setenv("PENSTOCK_LOG", "DEBUG")
    caplog.set_level(logging.DEBUG, logger="penstock")
    return Seen([state, tmp_path / "cache"])


@pytest.fixture
def manifests(server: S3, tmp_path: Path) -> list[dict[str, Any]]:
    for name in ("open", "sealed"):
        fill(server, name, {"file": b"x" * 300_000})
    text = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mysecret"},
        "stringData": {"fs.oss.accessKeyId": ACCESS_KEY, "unused": OTHER},
        "data": {"fs.oss.accessKeySecret": base64.b64encode(SECRET_KEY.encode()).decode()},
    }  # fmt: skip
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
    for line in processes_of(Path(os.environ["PENSTOCK_STATE_DIR"])):
        try:
            told = Path(f"/proc/{line.split()[0]}/environ").read_bytes()
        except OSError:
            continue  # it has ended
        seen.said += [line, told.decode(errors="replace")]


@pytest.mark.usefixtures("loop_process")
def test_of_a_data_set_that_is_used(
    seen: Seen, manifests: list[dict[str, Any]], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
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
    for words in (["stats", path, "-o", "json"], ["stats"], ["doctor", path, "-o", "json"],
                  ["refresh", path], ["up", "--restart", "both"]):  # fmt: skip
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


def test_of_a_data_set_that_is_refused(
    seen: Seen, manifests: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    manifests[0]["data"]["fs.oss.accessKeySecret"] = base64.b64encode(WRONG.encode()).decode()
    manifests[1]["spec"]["mounts"][0]["options"]["fs.oss.accessKeySecret"] = WRONG
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


@pytest.mark.parametrize(
    "spoil",
    [
        lambda them: them[0]["data"].update({"fs.oss.accessKeySecret": OTHER}),
        lambda them: them[0].update({"stringData": {"a": [OTHER]}}),
        lambda them: them[1]["spec"]["mounts"][0].update({"mountPoint": f"s3://a:{OTHER}@b"}),
        lambda them: them[1]["spec"]["mounts"][0]["options"].update(
            {"fs.oss.endpoint": f"http://user:{SECRET_KEY}@host"}
        ),
        lambda them: them[1]["spec"]["mounts"][1]["encryptOptions"][0].update({"value": OTHER}),
        lambda them: them[1]["spec"]["mounts"][0].update({"path": "/sealed"}),
    ],
    ids=["base64", "list", "address", "endpoint", "value", "clash"],
)  # fmt: skip
def test_of_a_mistake(
    seen: Seen, manifests: list[dict[str, Any]], tmp_path: Path, spoil: Any
) -> None:
    spoil(manifests)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    seen.run("validate", "-f", file)
    assert seen.run("apply", "-f", file) == 2
    if State().all():
        ask_everything(seen)
    else:  # twenty commands would say that there is nothing
        seen.run("get", "all", "-o", "yaml")
        seen.note_processes()
    assert seen.places_of(*SECRETS) == []
