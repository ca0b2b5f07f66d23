"""DataMigrate, between real stores."""

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreError, UsageError
from penstock.metrics import Counters
from penstock.operations.copying import Copier
from penstock.operations.locations import Found
from penstock.store.connect import StoreOptions, open_store
from penstock.store.etags import PART_BYTES
from penstock.store.faulty import WRONG_BYTES, FaultyStore
from penstock.store.retry import RetryingStore, Timing
from penstock.store.source import parse_source
from tests.support.mounts import Mounter
from tests.support.operation_work import Bench, BenchWork, kill_when, operation, run
from tests.support.s3 import ACCESS_KEY, KEYS, S3, SECRET_KEY, ObjectPath
from tests.support.trees import read_tree, write_tree

Copy = Callable[..., tuple[dict[str, Any], BenchWork]]
FILES = {
    f"{folder}/{number}.bin": random.Random(number).randbytes(2000 + number)
    for folder in ("a", "b/deep")
    for number in range(5)
} | {"odd é+%41.txt": b"odd", "empty": b""}


def migrate(folder: Path, source: Any, target: Any, **options: str) -> Bench:
    spec = {"from": source, "to": target, "options": options}
    return Bench(operation("DataMigrate", spec), str(folder / "work"))


def into_bucket(folder: Path, s3: S3, bucket: ObjectPath, **options: str) -> Bench:
    """From `folder / "source"` into a data set that nobody has mounted."""
    bench = migrate(folder, outside(folder / "source"), dataset("set"), **options)
    bench.datasets["default/set"] = ("/nowhere", [("", bucket.source, s3.endpoint)])
    return bench


def outside(address: str | Path) -> dict[str, Any]:
    uri = f"local://{address}" if str(address).startswith("/") else str(address)
    return {"externalStorage": {"uri": uri}}


def dataset(name: str, path: str = "") -> dict[str, Any]:
    return {"dataset": {"name": name, "namespace": "default", "path": path}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_tree(tmp_path / "source", FILES)
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "made/target"


@pytest.fixture
def copy(source: Path, target: Path, tmp_path: Path) -> Copy:
    """Migrates from `source` to `target`, with these options."""
    return lambda **options: run(migrate(tmp_path, outside(source), outside(target), **options))


def test_everything_is_copied_once_and_overwritten_only_on_request(
    target: Path, copy: Copy
) -> None:
    infos, work = copy(**{"check-all": "true"})
    assert read_tree(target) == FILES
    assert infos["Copied"].startswith(f"{len(FILES)} files")
    assert [reason for reason, _ in work.events] == ["NoEffect"]  # an option of another engine
    inodes = {path: path.stat().st_ino for path in target.rglob("*")}
    infos, _ = copy()
    assert (infos["Copied"], infos["Skipped"]) == ("0 files, 0 B", f"{len(FILES)} files")
    assert inodes == {path: path.stat().st_ino for path in target.rglob("*")}
    write_tree(target, {"a/0.bin": b"ours"})
    copy(**{"ignore-existing": "true"})
    assert read_tree(target) == {**FILES, "a/0.bin": b"ours"}
    with pytest.raises(UsageError, match="timeout is over"):
        copy(**{"force-update": "true", "timeout": "0.3s", "rate": "1KiB/s"})
    copy(**{"force-update": "true"})
    assert read_tree(target) == FILES


def test_differences_are_found_by_version_size_etag_or_date(
    s3: S3, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    bucket = s3.bucket("migrate-differs")
    write_tree(bucket, FILES)
    bench = migrate(tmp_path, outside(bucket.source), outside(target))
    run(bench)
    (bucket / "a/0.bin").write_bytes(b"shorter")
    (bucket / "a/1.bin").write_bytes(FILES["a/1.bin"][::-1])
    (target / "a/2.bin").write_bytes(b"x")
    infos, _ = run(bench)
    assert infos["Copied"].startswith("3 files")
    assert read_tree(target) == read_tree(bucket)
    # Without a journal the date decides where one side has no ETags: a copy that is newer stays.
    newer = FILES["a/4.bin"][::-1]
    write_tree(target, {"a/3.bin": FILES["a/3.bin"][::-1], "a/4.bin": newer})
    os.utime(target / "a/3.bin", (0, 0))
    run(migrate(tmp_path / "without", outside(bucket.source), outside(target)))
    assert read_tree(target) == {**read_tree(bucket), "a/4.bin": newer}
    # Where both sides have ETags, those decide.
    other = s3.bucket("migrate-differs-too")
    write_tree(other, {**read_tree(bucket), "a/4.bin": newer})
    infos, _ = run(migrate(tmp_path / "etags", outside(bucket.source), outside(other.source)))
    assert infos["Copied"].startswith("1 file")
    assert read_tree(other) == read_tree(bucket)


def test_a_bucket_takes_keys_from_a_secret_and_the_endpoint_from_its_address(
    s3: S3, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    bucket = s3.bucket("migrate-keys")
    there = outside(f"minio://{s3.endpoint.removeprefix('http://')}/migrate-keys/in/side/")
    there["externalStorage"]["encryptOptions"] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": "keys", "key": key}}}
        for name, key in (("access-key", "id"), ("secret-key", "secret"))
    ]
    bench = migrate(tmp_path, outside(source), there)
    bench.secrets = {"default/keys/id": ACCESS_KEY, "default/keys/secret": SECRET_KEY}
    run(bench)
    assert read_tree(bucket / "in/side") == FILES
    kept = read_tree(Path(bench.folder))
    assert kept
    assert SECRET_KEY.encode() not in b"".join(kept.values())


def test_a_killed_multipart_upload_leaves_no_parts(s3: S3, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(2 * PART_BYTES + 77)
    write_tree(tmp_path / "source", {"large": data})
    bucket = s3.bucket("migrate-large")
    s3.client.create_multipart_upload(Bucket=bucket.name, Key="large-too")

    def uploads() -> list[str]:
        answer = s3.client.list_multipart_uploads(Bucket=bucket.name)
        return sorted(upload["Key"] for upload in answer.get("Uploads", ()))

    bench = into_bucket(tmp_path, s3, bucket, rate=f"{PART_BYTES // 2**22}MiB/s")
    kill_when(bench, lambda _: uploads() == ["large", "large-too"])
    assert not (bucket / "large").exists()
    bench.manifest["spec"]["options"] = {}
    _, work = run(bench)
    assert uploads() == ["large-too"]  # somebody else's
    assert (bucket / "large").read_bytes() == data
    assert [reason for reason, _ in work.events] == ["NotRefreshed"]  # it is not mounted
    infos, _ = run(bench)
    assert infos["Copied"] == "0 files, 0 B"


def test_a_migrated_data_set_contains_what_its_mounts_show(
    source: Path, tmp_path: Path, mounter: Mounter
) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    write_tree(outer, {"there": b"before"})
    inner.mkdir()
    mount = mounter(f"file://{outer}", "--refresh", "never")
    bench = migrate(tmp_path, outside(source), dataset("set", "/new"))
    bench.datasets["default/set"] = (
        str(mount.path),
        [("", f"file://{outer}", None), ("new/b/deep", f"file://{inner}", None)],
    )
    run(bench)
    assert set(read_tree(inner)) == {f"{number}.bin" for number in range(5)}
    assert set(read_tree(outer)) == {"there"} | {
        f"new/{path}" for path in FILES if not path.startswith("b/deep")
    }
    assert (mount.path / "new/a/3.bin").read_bytes() == FILES["a/3.bin"]
    # And out of it comes what the mounts show.
    write_tree(outer, {"new/b/deep/hidden": b"below the inner mount"})
    for path, shown in (("/new", FILES), ("/new/a/3.bin", {"3.bin": FILES["a/3.bin"]})):
        target = tmp_path / f"out-{len(shown)}"
        back = migrate(tmp_path, dataset("set", path), outside(target))
        back.datasets = bench.datasets
        run(back)
        assert read_tree(target) == shown


@pytest.mark.parametrize(
    ("options", "copied"),
    [({"exclude": "4.bin,/b/"},
      {path for path in FILES if not path.startswith("b/") and path != "a/4.bin"}),
     ({"include": "3.bin", "exclude": "*.bin"},
      {path for path in FILES if path.endswith("3.bin") or not path.endswith(".bin")}),
     ({"include": "**/deep/[0-2].bin"}, {f"b/deep/{number}.bin" for number in range(3)}),
     ({"start": "b/", "end": "c"}, {path for path in FILES if path.startswith("b/")}),
     ({"dry-run": "true"}, set()),
     ({"existing": ""}, set())],
)  # fmt: skip
def test_include_and_exclude_patterns_select_files(
    target: Path, copy: Copy, options: dict[str, str], copied: set[str]
) -> None:
    copy(**options)
    assert set(read_tree(target)) == copied


def test_files_missing_in_the_source_are_deleted_on_request(
    source: Path, target: Path, copy: Copy
) -> None:
    write_tree(target, {"old/file": b"", "old/kept.txt": b""})
    infos, _ = copy(**{"delete-dst": "true", "exclude": "*.txt"})
    assert infos["Deleted"] == "1 file"
    expected = {path for path in FILES if not path.endswith(".txt")} | {"old/kept.txt"}
    assert set(read_tree(target)) == expected
    shutil.rmtree(source)
    source.mkdir()
    with pytest.raises(UsageError, match="is empty"):
        copy(**{"delete-dst": ""})
    assert set(read_tree(target)) == expected


def test_source_files_are_deleted_only_after_a_confirmed_copy(
    source: Path, target: Path, copy: Copy
) -> None:
    write_tree(target, {"a/0.bin": FILES["a/0.bin"][::-1]})  # newer, of the same size
    copy(**{"delete-src": "true", "update": "true"})
    assert set(read_tree(source)) == {"a/0.bin"}
    assert set(read_tree(target)) == set(FILES)


def test_a_killed_operation_resumes_where_it_stopped(tmp_path: Path, s3: S3) -> None:
    files = {f"{number:02}": random.Random(number).randbytes(100_000) for number in range(12)}
    write_tree(tmp_path / "source", files)
    bucket = s3.bucket("migrate-killed")
    bench = into_bucket(tmp_path, s3, bucket, rate="256KiB/s", threads="2")
    kill_when(bench, lambda progress: progress["files"] >= 3)

    def written() -> dict[str, Any]:
        answer = s3.client.list_objects_v2(Bucket=bucket.name)
        return {entry["Key"]: entry["LastModified"] for entry in answer["Contents"]}

    early = written()
    assert 3 <= len(early) < len(files)
    bench.manifest["spec"]["options"] = {}
    infos, _ = run(bench)
    assert read_tree(bucket) == files
    # The journal does not know of copies that ended just before the kill, at most two a thread.
    # Their ETags tell.
    assert int(infos["Copied"].split()[0]) >= len(files) - 4
    assert {name: time for name, time in written().items() if name in early} == early


def test_a_flipped_bit_never_arrives(s3: S3, tmp_path: Path) -> None:
    bucket = s3.bucket("migrate-bits")
    write_tree(bucket, FILES)
    real = open_store(parse_source(bucket.source), StoreOptions(endpoint=s3.endpoint), Counters())
    (tmp_path / "target").mkdir()
    local = open_store(parse_source(f"file://{tmp_path}/target"), StoreOptions(), Counters())
    faulty = FaultyStore(real, {WRONG_BYTES: 0.4}, seed=1)
    copier = Copier(rate_limit=None, moved=lambda _: None, stopping=threading.Event())
    target = RetryingStore(local, Counters(), deadline_s=60, time=Timing(sleep=lambda _: None))
    for page in real.list_all(""):
        for info in page:
            copier.copy(Found(info.key, faulty, info), target, info.key)
    assert faulty.injected[WRONG_BYTES] >= 3
    assert read_tree(tmp_path / "target") == FILES


def test_files_that_cannot_be_copied_are_named_and_the_rest_is_copied(
    target: Path, copy: Copy
) -> None:
    write_tree(target, {"a": b"a file where a folder should be"})
    with pytest.raises(StoreError, match="5 of 12 objects could not be copied; a/"):
        copy()
    assert set(read_tree(target)) == {path for path in FILES if path[:2] != "a/"} | {"a"}


@pytest.mark.parametrize(
    ("to", "options", "what"),
    [("/source/below", {}, "overlap"), ("https://host/folder", {}, "cannot write to"),
     ("/target", {"exclud": "x"}, "exclud is not an option"),
     ("/target", {"threads": "many"}, "threads: 'many'"),
     ("/target", {"rate": "10Gb/s"}, "rate: '10Gb/s'")],
)  # fmt: skip
def test_an_impossible_migration_is_rejected_before_anything_is_copied(
    source: Path, tmp_path: Path, to: str, options: dict[str, str], what: str
) -> None:
    there = f"{tmp_path}{to}" if to.startswith("/") else to
    with pytest.raises(UsageError, match=what):
        run(migrate(tmp_path, outside(source), outside(there), **options))
    assert read_tree(source) == FILES
    assert not (tmp_path / "target").exists()
