"""The manifests of the seeds, from create to delete, against a real S3 server: phases and columns
as those documents show them."""

import os
import re
from pathlib import Path

import pytest

from penstock.api import resources as api
from penstock.reconcile.state import State
from tests.support.datasets import fill, path_of, seed
from tests.support.mounts import penstock, succeed
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

V100 = "aliyun.accelerator/nvidia_name=Tesla-V100-SXM2-16GB"
FILES = {f"train/n{number % 3:04}/{number}.JPEG": os.urandom(3000) for number in range(12)}
TOTAL = sum(map(len, FILES.values()))


@pytest.fixture
def filled(s3: S3, tmp_path: Path) -> Path:
    """The seeds' files with bucket, endpoint, keys and cache folder filled in, and nothing else."""
    fill(s3, "story", {f"imagenet/{name}": data for name, data in FILES.items()})
    values = {
        "bucket": "story",
        "oss_bucket": "story",
        "directory": "imagenet",
        "bucket_dir": "imagenet",
        "endpoint": s3.endpoint,
        "access_key_id": ACCESS_KEY,
        "access_key_secret": SECRET_KEY,
    }
    for number in ("000", "004"):
        for part in ("dataset", "runtime"):
            text = seed(number, part, **values).replace("/var/lib/docker", str(tmp_path))
            (tmp_path / f"seed-{number}-{part}.yaml").write_text(text)
    return tmp_path


def table(kind: str) -> tuple[str, list[str]]:
    """The title and the only row of what `get` prints."""
    title, row = succeed("get", kind).splitlines()
    return " ".join(title.split()), row.split()


@pytest.mark.usefixtures("loop_process")
@pytest.mark.parametrize(("seed", "kind"), [("000", "alluxioruntime"), ("004", "jindoruntime")])
def test_a_seed_manifest_runs_from_create_to_delete(
    declared: State, filled: Path, seed: str, kind: str
) -> None:
    penstock("label", V100)
    # Create the data set: not bound.
    done = penstock("apply", "-f", filled / f"seed-{seed}-dataset.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "dataset.data.fluid.io/imagenet created" in done.stdout.splitlines()
    assert table("dataset")[1][1] == "NotBound"

    # The runtime: bound.
    done = penstock("apply", "-f", filled / f"seed-{seed}-runtime.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    title, row = table("dataset")
    assert title == "NAME UFS TOTAL SIZE CACHED CACHE CAPACITY CACHED PERCENTAGE PHASE AGE"
    assert (row[1:3], row[4:6]) == (["35.16KiB", "0.00B"], ["0.0%", "Bound"])
    title, row = table(kind)
    assert title == "NAME MASTER PHASE WORKER PHASE FUSE PHASE AGE"
    assert row[1:4] == ["Ready", "Ready", "Ready"]
    described = penstock("describe", "dataset", "imagenet").stdout
    for expected in (
        r"^    Message: +The ddc runtime is ready\.$",
        r"^    Reason: +DatasetReady$",
        r"^  Phase: +Bound$",
        rf"^    Type: +{kind.removesuffix('runtime')}$",
    ):
        assert re.search(expected, described, re.MULTILINE), (expected, described)
    # Read, where arena's users look for it: below the mount's name.
    path = path_of("imagenet")
    for name, data in list(FILES.items())[:2]:
        assert (path / "imagenet" / name).read_bytes() == data
    # Load the rest; the count is true to the byte.
    succeed("load", "imagenet")
    imagenet = api.dataset("imagenet")
    assert (imagenet.cached_bytes, imagenet.total_bytes, imagenet.files) == (TOTAL, TOTAL, 12)
    assert table("dataset")[1][4] == "100.0%"

    # Delete, as the seed does.
    succeed("delete", "dataset", "imagenet")
    assert not path.exists()
    succeed("delete", kind, "imagenet")
    assert penstock("get", "datasets").stdout == ""


def test_a_machine_without_the_label_is_told_why_the_data_set_stays_unbound(
    declared: State, filled: Path
) -> None:
    for part in ("dataset", "runtime"):
        succeed("apply", "-f", filled / f"seed-004-{part}.yaml")
    assert table("dataset")[1][1] == "NotBound"
    (condition, *_) = api.dataset("imagenet").conditions
    assert condition["reason"] == "NodeAffinityNotMet"
    assert "aliyun.accelerator/nvidia_name" in condition["message"]
    assert "penstock label" in condition["message"]
    # Labelled, it is bound without being applied again.
    penstock("label", V100)
    assert api.up() == []
    assert api.dataset("imagenet").phase == "Bound"
