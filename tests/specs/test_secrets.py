"""Secrets are found, taken out, and put back; no error and no repr shows one."""

import json

import pytest

from penstock.specs.models import model_of
from penstock.specs.secret_fields import HIDDEN, hidden_places, put_secrets, take_secrets
from tests.support.manifests import dataset, manifest, problems, read_one

SECRET = """
apiVersion: v1
kind: Secret
metadata: {name: mysecret}
data: {id: aHVudGVyMQ==}
stringData: {key: hunter2}
"""
DATASET = dataset(
    "mountPoint: s3://one\nname: one\noptions: {aws.secretKey: hunter1, endpoint: https://there}",
    """
    mountPoint: juicefs:///two
    name: two
    options: {metaurl: "redis://:hunter2@there/1", access-key: hunter3}
    encryptOptions: [{name: k, valueFrom: {secretKeyRef: {name: mysecret, key: key}}}]
    """,
)
RUNTIME = manifest(
    "JuiceFSRuntime",
    """
    fuse: {env: [{name: ACCESS_TOKEN, value: hunter4}, {name: LEVEL, value: debug}]}
    worker: {options: {token: 12345}}
    """,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (SECRET, {"/data/id": "aHVudGVyMQ==", "/stringData/key": "hunter2"}),
        (
            DATASET,
            {
                "/spec/mounts/@one/options/aws.secretKey": "hunter1",
                "/spec/mounts/@two/options/metaurl": "redis://:hunter2@there/1",
                "/spec/mounts/@two/options/access-key": "hunter3",
            },
        ),
        (
            RUNTIME,
            {
                "/spec/fuse/env/@ACCESS_TOKEN/value": "hunter4",
                "/spec/worker/options/token": "12345",
            },
        ),
    ],
)
def test_secrets_are_extracted_restored_and_never_shown(text: str, values: dict[str, str]) -> None:
    manifest = read_one(text).raw
    before = json.dumps(manifest)
    hidden, taken = take_secrets(manifest)
    assert taken == values
    assert json.dumps(manifest) == before
    shown = json.dumps(hidden) + repr(read_one(text).resource)
    assert "hunter" not in shown
    assert "aHVudGVyMQ" not in shown
    assert model_of(put_secrets(hidden, taken)) == model_of(manifest)
    assert sorted(hidden_places(hidden)) == sorted(values)
    assert take_secrets(hidden) == (hidden, {})


def test_a_mount_inserted_before_another_does_not_get_its_keys() -> None:
    hidden, kept = take_secrets(read_one(DATASET).raw)
    hidden["spec"]["mounts"].insert(0, {"name": "zero", "options": {"aws.secretKey": HIDDEN}})
    mounts = put_secrets(hidden, kept)["spec"]["mounts"]
    assert mounts[0]["options"] == {"aws.secretKey": HIDDEN}
    assert mounts[1]["options"]["aws.secretKey"] == "hunter1"


def test_the_last_applied_annotation_of_kubectl_is_dropped() -> None:
    copy = "kubectl.kubernetes.io/last-applied-configuration"
    text = SECRET.replace("name: m", f"annotations: {{{copy}: hunter, a: b}}, name: m")
    document = read_one(text)
    assert "hunter" not in json.dumps(take_secrets(document.raw)[0])
    assert document.resource.metadata.annotations == {"a": "b"}


@pytest.mark.parametrize(
    "text",
    [SECRET.replace("hunter2", "[hunter2]"),
     SECRET.replace("hunter2", "0007700"),
     SECRET.replace("aHVudGVyMQ==", "hunter1%"),
     DATASET.replace("hunter1", "{a: hunter1}"),
     DATASET.replace("hunter1", "0007700"),
     DATASET.replace("s3://one", "s3://id:hunter1@one")],
)  # fmt: skip
def test_no_error_message_shows_a_secret(text: str) -> None:
    reported = [f"{one} {one.hint}" for one in problems(text)]
    assert reported
    assert not any("hunter" in one or "7700" in one for one in reported)
