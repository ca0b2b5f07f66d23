"""The support bundle: what is in it, and that no secret is, in any spelling."""

import base64
import json
import os
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from penstock.resources.diagnosis.cleaning import Cleaner, environment_of
from penstock.resources.state import State
from tests.support.declared_samples import put
from tests.support.leaks import places_in_bundle
from tests.support.mounts import Mounter, penstock
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import write_tree

IN_SECRET = "sk/Of+A=Secret0123456789"
IN_DATA = "sk-of-data-in-base64-42"
IN_OPTIONS = "sk-of-mount-options-77"
IN_METAURL = "pass-of-redis-88"
IN_TOKEN = "token-of-the-environment-99"
KEY_ID = "LTAI5tKeyIdOfTheDataSet"
PLANTED = (
    IN_SECRET, IN_DATA, IN_OPTIONS, IN_METAURL, IN_TOKEN, KEY_ID, ACCESS_KEY, SECRET_KEY,
)  # fmt: skip


@pytest.fixture
def declared(state: Path) -> State:
    resources = State()
    data = {"pass": base64.b64encode(IN_DATA.encode()).decode(),
            "endpoint": base64.b64encode(b"http://store.example").decode()}  # fmt: skip
    put("Secret", "keys", stringData={"secret": IN_SECRET}, data=data)
    mount = {
        "mountPoint": "s3://some-bucket/p", "name": "p",
        "options": {"fs.s3.accessKeyId": KEY_ID, "fs.s3.secretKey": IN_OPTIONS,
                    "fs.s3.endpoint": "http://store.example",
                    "metaurl": f"redis://:{IN_METAURL}@host/1"},
    }  # fmt: skip
    uid = put("Dataset", "imagenet", spec={"mounts": [mount]})
    # What a careless library might say.
    resources.add_event(uid, "Failed", f"refused {KEY_ID} with {IN_SECRET}", kind="Warning")
    (state / "logs").mkdir()
    lines = [f"12:00 ERROR {one} {base64.b64encode(b'x' + one.encode()).decode()}"
             for one in (*PLANTED, quote(IN_SECRET, safe=""))]  # fmt: skip
    (state / "logs" / "loop.log").write_text("\n".join(lines) + "\n")
    load = put("DataLoad", "warm", spec={"dataset": {"name": "imagenet"}})
    folder = state / "operations" / load
    folder.mkdir(parents=True)
    (folder / "log").write_text("\n".join(lines) + "\nit went on\n")
    return resources


def test_a_bundle_holds_what_is_needed_and_no_secret(
    declared: State, s3: S3, mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", IN_TOKEN)
    write_tree(s3.bucket("bundled"), {"a": b"1"})
    mount = mounter("s3://bundled", "--endpoint", s3.endpoint)
    # The keys are the mount's alone by now.
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bundle = tmp_path / "support.tar.gz"
    result = penstock("doctor", "--bundle", bundle)
    assert result.returncode == 2, result.stderr  # imagenet has no runtime
    assert str(bundle) in result.stderr
    assert "resources.yaml" in result.stderr
    assert bundle.stat().st_mode & 0o777 == 0o600
    for secret in PLANTED:
        assert places_in_bundle(bundle, secret) == [], secret
        assert secret not in result.stdout + result.stderr
    with tarfile.open(bundle) as archive:
        texts = {
            member.name.removeprefix("support/"): file.read().decode()
            for member in archive.getmembers() if (file := archive.extractfile(member)) is not None
        }  # fmt: skip
    resources = list(yaml.safe_load_all(texts["resources.yaml"]))
    assert sorted(one["kind"] for one in resources) == ["DataLoad", "Dataset", "Secret"]
    report = json.loads(texts["report.json"])
    assert any(one["what"] == "it waits for a runtime" for one in report["findings"])
    assert "it waits for a runtime" in texts["report.txt"]
    assert "refused … with …" in texts["events.json"]
    assert "it went on" in texts["logs/dataload-default-warm.log"]
    assert "12:00 ERROR … " in texts["logs/loop.log"]
    name = str(mount.path).strip("/").replace("/", "-")
    settings = json.loads(texts[f"mounts/{name}/settings.json"])
    assert settings["parts"][0]["store"]["endpoint"] == s3.endpoint
    assert json.loads(texts[f"mounts/{name}/stats.json"])["files"] == 1
    assert json.loads(texts[f"mounts/{name}/note.json"])["source"] == "s3://bundled"
    # Places are no secrets: a bundle without them is of little use.
    assert "http://store.example" in texts["resources.yaml"]
    assert "s3://some-bucket/p" in texts["resources.yaml"]
    assert {"versions.json", "machine.txt"} <= set(texts)
    assert list(tmp_path.glob(".support*")) == []


def test_what_is_there_is_not_overwritten_and_a_folder_that_is_not_is_told(tmp_path: Path) -> None:
    taken = tmp_path / "precious.tar.gz"
    taken.write_bytes(b"precious")
    result = penstock("doctor", "--bundle", taken)
    assert (result.returncode, "exists already" in result.stderr) == (2, True)
    assert taken.read_bytes() == b"precious"
    result = penstock("doctor", "--bundle", tmp_path / "none" / "b.tar.gz")
    assert (result.returncode, "No such file" in result.stderr) == (2, True)


# -- the cleaner by itself -------------------------------------------------------------------


def test_every_spelling_of_a_secret_goes_and_the_rest_stays() -> None:
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhk\nAoIBAQC7vbqajDw4o6\n-----END-----"
    clean = Cleaner([IN_SECRET, "abc", "", "  padded-secret\n", pem, "12345678"])
    for before in ("", "x", "xy", "xyz"):
        whole = base64.b64encode(f"{before}{IN_SECRET}tail".encode()).decode()
        hidden = clean.text(f"key {whole}")
        assert base64.b64encode(IN_SECRET[3:-3].encode()).decode()[4:-4] not in hidden
        assert len(hidden) < len(whole)
    assert clean.text(f"a {quote(IN_SECRET, safe='')} b") == "a … b"
    assert clean.text("abc is too short to be told from a word") == (
        "abc is too short to be told from a word"
    )
    assert clean.text("see AKIAABCDEFGHIJKLMNOP, padded-secret") == "see …, …"
    # One of several lines goes line by line.
    assert "MIIEvQ" not in clean.text("of it: MIIEvQIBADANBgkqhk, and no more")
    assert "MIIEvQ" not in clean.text(json.dumps({"key": pem}))
    # Wherever it stands in a value.
    value = {"a": [12345678, 5, True, None, "x padded-secret"], "padded-secret": 1.5}
    assert clean.value(value) == {"a": ["…", 5, True, None, "x …"], "…": 1.5}


def test_the_environment_of_a_process_is_read_and_of_one_that_is_gone_is_empty() -> None:
    assert environment_of(os.getpid()).keys() >= {"PATH"}
    assert environment_of(2**22 + 1) == {}
