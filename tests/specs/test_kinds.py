"""The words for kinds, and the schemes of mount points."""

import subprocess
import sys

import pytest

from penstock.errors import ManifestError
from penstock.specs.kinds import KINDS, find_kind, find_kinds
from penstock.specs.models import MODELS
from penstock.specs.schemes import SCHEMES, wrong_with


@pytest.mark.parametrize(
    ("word", "kind"),
    [("Dataset", "Dataset"), ("DATASETS", "Dataset"), ("ds", "Dataset"),
     ("datasets.data.fluid.io", "Dataset"), ("jobs", "TrainingJob"), ("tj", "TrainingJob")],
)  # fmt: skip
def test_a_kind_has_many_spellings(word: str, kind: str) -> None:
    assert find_kind(word).kind == kind


def test_a_word_may_stand_for_several_kinds() -> None:
    assert {info.category for info in find_kinds("runtimes")} == {"runtime"}
    assert [info.kind for info in find_kinds("ds,dataload,datasets")] == ["Dataset", "DataLoad"]
    assert "Secret" not in {info.kind for info in find_kinds("all")}
    with pytest.raises(ManifestError, match="several kinds"):
        find_kind("runtimes")


@pytest.mark.parametrize(
    ("word", "hint"), [("datsets", "did you mean datasets?"), ("pods", "kinds: datasets,")]
)
def test_a_word_that_is_no_kind_is_refused_with_the_nearest(word: str, hint: str) -> None:
    with pytest.raises(ManifestError) as caught:
        find_kind(word)
    assert (caught.value.hint or "").startswith(hint)


def test_every_kind_has_a_model_that_its_words_do_not_import() -> None:
    """`penstock get` asks for a kind long before it needs pydantic, which takes 0.1 s."""
    assert set(KINDS) == set(MODELS)
    code = "import sys, penstock.specs.kinds; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_that_is_read_is_a_good_mount_point(scheme: str) -> None:
    rest = "/folder" if scheme in ("file", "local") else "bucket/prefix"
    assert wrong_with(f"{scheme}://{rest}") is None


@pytest.mark.parametrize(
    ("address", "what", "hint"),
    [("hdfs://namenode:9000/x", "scheme 'hdfs' is not read here", "local:///FOLDER"),
     ("oos://bucket", "scheme 'oos' is not read here", "did you mean oss://?"),
     ("S3://bucket", "scheme 'S3' is not read here", "did you mean s3://?"),
     ("zzz://bucket", "scheme 'zzz' is not read here", "schemes: s3,"),
     ("/data", "is a folder without a scheme", "local:///data"),
     ("10.0.0.1:/export", "looks like an NFS export", "local:///FOLDER"),
     ("bucket", "has no scheme", "s3://BUCKET/PREFIX"),
     ("local://data", "is not an absolute path", "local:///data"),
     ("s3://", "names no bucket", "s3://BUCKET/PREFIX"),
     ("oss://<OSS_BUCKET>/x", "still holds a <PLACEHOLDER>", "your own bucket"),
     ("s3://AKIA:hunter2@bucket", "holds a user or a key", "encryptOptions"),
     ("https://host/folder?sig=hunter2", "has a query", "into a Secret")],
)  # fmt: skip
def test_a_wrong_mount_point_is_refused_with_what_to_do(address: str, what: str, hint: str) -> None:
    wrong = wrong_with(address)
    assert wrong is not None
    assert what in wrong[0]
    assert hint in wrong[1]
    assert "hunter2" not in "".join(wrong)
