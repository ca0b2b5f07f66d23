"""Data sets that were applied, and what the doctor says of them: with real mounts and keys."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import api
from penstock.bench.programs import free_port
from penstock.errors import PenstockError
from penstock.resources.state import State
from tests.support.datasets import dataset, encrypt_options, fill, ours, secret
from tests.support.leaks import places_in_bundle
from tests.support.mounts import penstock
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY


def mount(endpoint: str, bucket: str) -> dict[str, Any]:
    return {
        "mountPoint": f"oss://{bucket}", "name": bucket, "path": "/",
        "options": {"fs.oss.endpoint": endpoint}, "encryptOptions": encrypt_options(),
    }  # fmt: skip


def apply(*manifests: dict[str, Any]) -> None:
    """Also what cannot be bound."""
    with suppress(PenstockError):
        api.apply(list(manifests))


def test_a_data_set_that_is_bound_and_well_is_one_line_and_its_bundle_has_no_keys(
    declared: State, server: S3, tmp_path: Path
) -> None:
    fill(server, "doctored", {"a": b"1" * 100})
    apply(
        secret(), dataset("doctored", server, mount(server.endpoint, "doctored")), ours("doctored")
    )
    bundle = tmp_path / "b.tar.gz"
    told = penstock("doctor", "doctored", "--bundle", bundle)
    assert told.returncode == 0, told.stdout
    assert "doctored: nothing is wrong" in told.stdout
    assert (places_in_bundle(bundle, SECRET_KEY), places_in_bundle(bundle, ACCESS_KEY)) == ([], [])
    place = api.dataset("doctored").path
    assert penstock("umount", place).returncode == 0
    told = penstock("doctor", "doctored")
    assert (told.returncode, "it should be mounted, and is not" in told.stdout) == (2, True)
    assert "do:  penstock up doctored" in told.stdout


def test_wrong_keys_a_wrong_port_and_a_secret_that_is_gone_are_told_apart(
    declared: State, server: S3
) -> None:
    fill(server, "refusing", {"a": b"1"})
    wrong = secret()
    wrong["stringData"]["fs.oss.accessKeySecret"] = "a-secret-that-is-wrong"
    apply(wrong, dataset("refusing", server, mount(server.endpoint, "refusing")), ours("refusing"))
    told = penstock("doctor", "refusing")
    assert told.returncode == 2
    assert "not bound:" in told.stdout
    assert "its secret key is not the one of its key id" in told.stdout
    assert "a-secret-that-is-wrong" not in told.stdout
    away = f"http://127.0.0.1:{free_port()}"
    apply(secret(), dataset("refusing", server, mount(away, "refusing")), ours("refusing"))
    told = penstock("doctor", "refusing")
    assert told.returncode == 3
    assert f"{away}: it does not take connections" in told.stdout
    api.delete("secret", "mysecret")
    told = penstock("doctor", "refusing")
    assert told.returncode in (2, 3), "the loop may not have seen it yet"
    assert "mysecret" in told.stdout
