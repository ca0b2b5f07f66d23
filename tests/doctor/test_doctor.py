"""The command, as a person runs it: on mounts that are well, dying or dead, and on data sets; and
its support bundle, with no secret in it in any spelling."""

import base64
import json
import os
import signal
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from penstock.api import resources as api
from penstock.daemon.mount_registry import find_note, serves
from penstock.doctor.redactor import Redactor
from penstock.reconcile.state import State
from tests.support.datasets import dataset, fill, mount, ours, secret
from tests.support.declared_samples import put
from tests.support.leaks import places_in_bundle, texts_of_bundle
from tests.support.mounts import Mounter, fail, penstock, succeed
from tests.support.s3 import ACCESS_KEY, KEYS, S3, SECRET_KEY
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


def wrong(*names: str | Path) -> str:
    """What the doctor prints when it finds something wrong."""
    result = penstock("doctor", *names)
    assert result.returncode == 2
    return result.stdout


def test_a_healthy_data_set_is_one_line(declared: State, server: S3, tmp_path: Path) -> None:
    fill(server, "doctored", {"a": b"1" * 5000})
    stored = dataset("doctored", server, mount(server, "doctored", path="/"))
    api.apply([secret(), stored, ours("doctored")])
    bundle = tmp_path / "b.tar.gz"
    output = succeed("doctor", "doctored", "--bundle", bundle)
    assert "doctored: nothing is wrong" in output
    assert "ok " not in output
    assert (places_in_bundle(bundle, SECRET_KEY), places_in_bundle(bundle, ACCESS_KEY)) == ([], [])
    output = succeed("doctor", "doctored", "-v")
    assert f"oss://doctored: {server.endpoint} answers" in output
    assert "1 file, 4.9 KiB" in output
    place = api.dataset("doctored").path
    found = json.loads(penstock("doctor", place, "-o", "json").stdout)
    assert (found["exit_code"], found["hidden"], found["mode"]) == (0, [], "pagecache")
    assert "ok" in {one["severity"] for one in found["findings"]}
    succeed("umount", place)
    output = wrong("doctored")
    assert "it should be mounted, but is not" in output
    assert "do:  penstock up doctored" in output


def test_a_mount_without_source_supervisor_and_server(mounter: Mounter, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {"a": b"1"})
    broken = mounter(f"file://{tmp_path}/source")
    os.rename(tmp_path / "source", tmp_path / "moved")
    assert "the folder does not exist" in wrong(broken.path)
    os.rename(tmp_path / "moved", tmp_path / "source")
    supervisor, server = find_note(broken.path).processes
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not serves(supervisor, str(broken.path)))
    assert "its supervisor is gone" in wrong(broken.path)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not serves(server, str(broken.path)))
    for arguments in ([broken.path], []):
        output = wrong(*arguments)
        assert "its supervisor and its server are gone" in output
        assert f"do:  penstock umount {broken.path}" in output


def test_damage_does_not_stop_the_doctor(mounter: Mounter, state: Path, tmp_path: Path) -> None:
    damaged = state / "resources.sqlite"
    damaged.write_bytes(b"not a database, not at all" * 100)
    write_tree(tmp_path / "source", {"a": b"1"})
    broken = mounter(f"file://{tmp_path}/source", "--watchdog", "100s")
    output = wrong()
    assert "wrong the declared state:" in output
    assert f"{broken.path}: nothing is wrong" in output
    damaged.unlink()
    _, server = find_note(broken.path).processes
    os.kill(server, signal.SIGSTOP)
    try:
        assert "does not answer: it is stuck" in wrong(broken.path)
    finally:
        os.kill(server, signal.SIGCONT)


def test_an_unknown_name_is_an_error() -> None:
    for name, says in (
        ("imagenet", "no data set 'imagenet'"),
        ("datalod/x", "did you mean"),
        ("runtimes/x", "several kinds"),
    ):
        output = fail("doctor", name)
        assert says in output
        assert "hint:" in output


# -- the bundle ------------------------------------------------------------------------------

IN_SECRET = "sk/Of+A=Secret0123456789"
IN_DATA = "sk-of-data-in-base64-42"
IN_OPTIONS = "sk-of-mount-options-77"
IN_METAURL = "pass-of-redis-88"
IN_TOKEN = "token-of-the-environment-99"
KEY_ID = "LTAI5tKeyIdOfTheDataSet"
PLANTED = (IN_SECRET, IN_DATA, IN_OPTIONS, IN_METAURL, IN_TOKEN, KEY_ID, ACCESS_KEY, SECRET_KEY)


@pytest.fixture
def planted(state: Path) -> None:
    """Secrets in everything that a bundle is made of."""
    data = {
        "pass": base64.b64encode(IN_DATA.encode()).decode(),
        "endpoint": base64.b64encode(b"http://store.example").decode(),
    }
    put("Secret", "keys", stringData={"secret": IN_SECRET}, data=data)
    mount = {
        "mountPoint": "s3://some-bucket/p",
        "name": "p",
        "options": {
            "fs.s3.accessKeyId": KEY_ID,
            "fs.s3.secretKey": IN_OPTIONS,
            "fs.s3.endpoint": "http://store.example",
            "metaurl": f"redis://:{IN_METAURL}@host/1",
        },
    }
    uid = put("Dataset", "imagenet", spec={"mounts": [mount]})
    # What a careless library might say.
    State().add_event(uid, "Failed", f"refused {KEY_ID} with {IN_SECRET}", kind="Warning")
    (state / "logs").mkdir()
    lines = [
        f"12:00 ERROR {one} {base64.b64encode(b'x' + one.encode()).decode()}"
        for one in (*PLANTED, quote(IN_SECRET, safe=""))
    ]
    (state / "logs" / "loop.log").write_text("\n".join(lines) + "\n")
    load = put("DataLoad", "warm", spec={"dataset": {"name": "imagenet"}})
    folder = state / "operations" / load
    folder.mkdir(parents=True)
    (folder / "log").write_text("\n".join(lines) + "\nit went on\n")


def test_a_bundle_has_the_needed_facts_and_no_secret(
    planted: None, s3: S3, mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", IN_TOKEN)
    write_tree(s3.bucket("bundled"), {"a": b"1"})
    mount = mounter("s3://bundled", "--endpoint", s3.endpoint)
    # The keys are the mount's alone by now: its supervisor tells them.
    for name in KEYS:
        monkeypatch.delenv(name)
    bundle = tmp_path / "support.tar.gz"
    result = penstock("doctor", "--bundle", bundle)
    assert result.returncode == 2, result.stderr  # imagenet has no runtime
    assert str(bundle) in result.stderr
    assert "resources.yaml" in result.stderr
    assert bundle.stat().st_mode & 0o777 == 0o600
    for one in PLANTED:
        assert places_in_bundle(bundle, one) == [], one
        assert one not in result.stdout + result.stderr
    texts = texts_of_bundle(bundle)
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


def test_a_bundle_overwrites_nothing_and_reports_an_unwritable_folder(tmp_path: Path) -> None:
    taken = tmp_path / "precious.tar.gz"
    taken.write_bytes(b"precious")
    for place, says in ((taken, "exists already"), (tmp_path / "none/b.tar.gz", "No such file")):
        result = penstock("doctor", "--bundle", place)
        assert (result.returncode, says in result.stderr) == (2, True)
    assert taken.read_bytes() == b"precious"


def test_every_spelling_of_a_secret_is_redacted_and_the_rest_kept() -> None:
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhk\nAoIBAQC7vbqajDw4o6\n-----END-----"
    redactor = Redactor([IN_SECRET, "abc", "", "  padded-secret\n", pem, "12345678"])
    for before in ("", "x", "xy"):
        whole = base64.b64encode(f"{before}{IN_SECRET}tail".encode()).decode()
        hidden = redactor.text(f"key {whole}")
        assert base64.b64encode(IN_SECRET[3:-3].encode()).decode()[4:-4] not in hidden
        assert len(hidden) < len(whole)
    assert redactor.text(f"a {quote(IN_SECRET, safe='')} b") == "a … b"
    word = "abc is too short to be told from a word"
    assert redactor.text(word) == word
    assert redactor.text("see AKIAABCDEFGHIJKLMNOP, padded-secret") == "see …, …"
    # One of several lines goes line by line.
    assert "MIIEvQ" not in redactor.text("of it: MIIEvQIBADANBgkqhk, and no more")
    assert "MIIEvQ" not in redactor.text(json.dumps({"key": pem}))
    # Wherever it stands in a value.
    value = {"a": [12345678, 5, True, None, "x padded-secret"], "padded-secret": 1.5}
    assert redactor.value(value) == {"a": ["…", 5, True, None, "x …"], "…": 1.5}
