"""An upload of many parts that is killed in the middle. moto's server lists what is left of it."""

import random
import subprocess
from pathlib import Path
from typing import Any

from penstock.store.parts import PART_BYTES
from tests.catalog.test_odd_keys import moto, s3_client
from tests.conftest import write_tree
from tests.resources.operations.test_migrate import dataset, migrate, outside
from tests.resources.operations.working import kill_when, run, start

__all__ = ["moto", "s3_client"]  # fixtures


def test_parts_of_an_object_that_was_cut_short_are_not_left_behind(
    moto: str, s3_client: Any, tmp_path: Path
) -> None:
    data = random.Random(2).randbytes(3 * PART_BYTES)
    write_tree(tmp_path / "source", {"large": data})
    s3_client.create_bucket(Bucket="cut-short")
    other = s3_client.create_multipart_upload(Bucket="cut-short", Key="large-too")["UploadId"]
    bench = migrate(tmp_path, outside(tmp_path / "source"), dataset("set"), rate="2MiB/s")
    bench.datasets["default/set"] = ("/nowhere", [("", "s3://cut-short", moto)])

    def uploads() -> list[str]:
        answer = s3_client.list_multipart_uploads(Bucket="cut-short")
        return sorted(upload["Key"] for upload in answer.get("Uploads", ()))

    process: subprocess.Popen[str] = start(bench)
    kill_when(process, lambda _told: uploads() == ["large", "large-too"])
    bench.manifest["spec"]["options"] = {}
    run(bench)
    assert uploads() == ["large-too"]  # somebody else's
    assert other
    assert s3_client.get_object(Bucket="cut-short", Key="large")["Body"].read() == data
