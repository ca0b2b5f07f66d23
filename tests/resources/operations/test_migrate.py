"""DataMigrate, between real stores."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreError, UsageError
from penstock.metrics import Counters
from penstock.resources.operations.copying import Copier
from penstock.resources.operations.locations import Found
from penstock.store.connect import StoreOptions, open_store
from penstock.store.faulty import WRONG_BYTES, FaultyStore
from penstock.store.parts import PART_BYTES
from penstock.store.patience import PatientStore
from penstock.store.source import parse_source
from tests.conftest import ACCESS_KEY, S3, SECRET_KEY, Mounter, read_tree, serve_s3, write_tree
from tests.resources.operations.working import Bench, kill_when, run, start

FILES = {
    f"{folder}/{number}.bin": random.Random(number).randbytes(2000 + number)
    for folder in ("a", "b/deep")
    for number in range(5)
} | {"odd é+%41.txt": b"odd", "empty": b""}


@pytest.fixture
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One for each test: whoever cuts an upload leaves it spinning, and the next would time out."""
    yield from serve_s3(tmp_path_factory.mktemp("s3-of-uploads"))


def migrate(folder: Path, source: Any, target: Any, **options: str) -> Bench:
    return Bench(
        {
            "apiVersion": "data.fluid.io/v1alpha1", "kind": "DataMigrate",
            "metadata": {"name": "copy"},
            "spec": {"from": source, "to": target, "options": options},
        },
        str(folder / "work"),
    )  # fmt: skip


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


def test_all_of_it_is_there_afterwards_and_the_second_time_nothing_is_copied(
    source: Path, target: Path, tmp_path: Path
) -> None:
    bench = migrate(tmp_path, outside(source), outside(target))
    infos, _ = run(bench)
    assert read_tree(target) == FILES
    assert infos["Copied"].startswith(f"{len(FILES)} files")
    inodes = {path: path.stat().st_ino for path in target.rglob("*")}
    infos, _ = run(bench)
    assert (infos["Copied"], infos["Skipped"]) == ("0 files, 0 B", f"{len(FILES)} files")
    assert inodes == {path: path.stat().st_ino for path in target.rglob("*")}


def test_what_differs_is_copied_by_size_etag_or_date(
    s3: S3, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    bucket = s3.bucket("migrate-differs")
    write_tree(bucket, FILES)
    bench = migrate(tmp_path, outside("s3://migrate-differs"), outside(target))
    run(bench)
    (bucket / "a/0.bin").write_bytes(b"shorter")
    (bucket / "a/1.bin").write_bytes(FILES["a/1.bin"][::-1])
    os.utime(bucket / "a/1.bin", (2e9, 2e9))
    (target / "a/2.bin").write_bytes(b"x")
    infos, _ = run(bench)
    assert infos["Copied"].startswith("3 files")
    assert read_tree(target) == read_tree(bucket)


def test_a_bucket_with_keys_from_a_secret_and_the_endpoint_in_its_address(
    s3: S3, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
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
    kept = b"".join(path.read_bytes() for path in Path(bench.folder).rglob("*") if path.is_file())
    assert SECRET_KEY.encode() not in kept


def test_an_object_of_many_parts_passes_in_pieces(s3: S3, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(2 * PART_BYTES + 77)
    write_tree(tmp_path / "source", {"large": data})
    bucket = s3.bucket("migrate-large")
    bench = migrate(tmp_path, outside(tmp_path / "source"), dataset("set"))
    bench.datasets["default/set"] = ("/nowhere", [("", "s3://migrate-large", s3.endpoint)])
    _, work = run(bench)
    assert (bucket / "large").read_bytes() == data
    assert [reason for reason, _ in work.told] == ["NotRefreshed"]  # it is not mounted
    infos, _ = run(bench)
    assert infos["Copied"] == "0 files, 0 B"


def test_what_goes_into_a_data_set_goes_into_the_mount_that_is_there_and_is_seen_at_once(
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


def test_out_of_a_data_set_comes_what_the_mount_shows(
    source: Path, target: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write_tree(other, {"hides": b"this is seen"})
    bench = migrate(tmp_path, dataset("set", "/b"), outside(target))
    bench.datasets["default/set"] = (
        "/nowhere", [("", f"file://{source}", None), ("b/deep", f"file://{other}", None)],
    )  # fmt: skip
    run(bench)
    assert read_tree(target) == {"deep/hides": b"this is seen"}


def test_one_file_can_be_meant(source: Path, target: Path, tmp_path: Path) -> None:
    bench = migrate(tmp_path, dataset("set", "/a/3.bin"), outside(target))
    bench.datasets["default/set"] = ("/nowhere", [("", f"file://{source}", None)])
    run(bench)
    assert read_tree(target) == {"3.bin": FILES["a/3.bin"]}


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        ({"exclude": "4.bin"}, {path for path in FILES if not path.endswith("4.bin")}),
        ({"exclude": "/b/"}, {path for path in FILES if not path.startswith("b/")}),
        ({"include": "a/*.bin"}, {path for path in FILES if path.startswith("a/")}),
        ({"include": "3.bin", "exclude": "*.bin"},
         {path for path in FILES if path.endswith("3.bin") or not path.endswith(".bin")}),
        ({"include": "**/deep/[0-2].bin"}, {f"b/deep/{number}.bin" for number in range(3)}),
        ({"start": "b/", "end": "c"}, {path for path in FILES if path.startswith("b/")}),
        ({"dry-run": "true"}, set()),
        ({"existing": ""}, set()),
    ],
)  # fmt: skip
def test_which_files_are_meant(
    source: Path, target: Path, tmp_path: Path, options: dict[str, str], copied: set[str]
) -> None:
    run(migrate(tmp_path, outside(source), outside(target), **options))
    assert set(read_tree(target)) == copied


def test_what_is_there_can_be_left_as_it_is_or_written_over(
    source: Path, target: Path, tmp_path: Path
) -> None:
    write_tree(target, {"a/0.bin": b"ours"})
    run(migrate(tmp_path, outside(source), outside(target), **{"ignore-existing": "true"}))
    assert read_tree(target) == {**FILES, "a/0.bin": b"ours"}
    run(migrate(tmp_path / "2", outside(source), outside(target), **{"force-update": "true"}))
    assert read_tree(target) == FILES


def test_what_the_source_does_not_have_is_deleted_if_so_wished(
    source: Path, target: Path, tmp_path: Path
) -> None:
    write_tree(target, {"old/file": b"", "old/kept.txt": b""})
    options = {"delete-dst": "true", "exclude": "*.txt"}
    infos, _ = run(migrate(tmp_path, outside(source), outside(target), **options))
    assert infos["Deleted"] == "1 files"
    expected = {path for path in FILES if not path.endswith(".txt")} | {"old/kept.txt"}
    assert set(read_tree(target)) == expected


def test_an_empty_source_deletes_nothing(target: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_tree(target, {"kept": b""})
    bench = migrate(tmp_path, outside(tmp_path / "source"), outside(target), **{"delete-dst": ""})
    with pytest.raises(UsageError, match="is empty"):
        run(bench)
    assert (target / "kept").exists()


def test_a_source_is_deleted_only_where_its_copy_is_beyond_doubt(
    source: Path, target: Path, tmp_path: Path
) -> None:
    write_tree(target, {"a/0.bin": FILES["a/0.bin"][::-1]})  # newer, of the same size
    options = {"delete-src": "true", "update": "true"}
    run(migrate(tmp_path, outside(source), outside(target), **options))
    assert set(read_tree(source)) == {"a/0.bin"}
    assert set(read_tree(target)) == set(FILES)


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path, s3: S3) -> None:
    files = {f"{number:02}": random.Random(number).randbytes(100_000) for number in range(20)}
    write_tree(tmp_path / "source", files)
    bucket = s3.bucket("migrate-killed")
    bench = migrate(tmp_path, outside(tmp_path / "source"), dataset("set"), rate="512KiB/s",
                    threads="2")  # fmt: skip
    bench.datasets["default/set"] = ("/nowhere", [("", "s3://migrate-killed", s3.endpoint)])
    kill_when(start(bench), lambda told: told["files"] >= 4)
    # rclone's server writes into files that begin so, and they come and go.
    early = {path: path.stat().st_ino for path in bucket.glob("[!.]*")}
    assert 4 <= len(early) < len(files)
    bench.manifest["spec"]["options"] = {}
    infos, _ = run(bench)
    assert read_tree(bucket) == files
    # Those that the journal did not come to know of, two a thread at most, are told apart by their
    # ETags.
    assert int(infos["Copied"].split()[0]) >= len(files) - 4
    assert {path: path.stat().st_ino for path in early} == early


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_never_arrives(s3: S3, tmp_path: Path, seed: int) -> None:
    bucket = s3.bucket(f"migrate-bits{seed}")
    write_tree(bucket, FILES)
    source = parse_source(f"s3://{bucket.name}")
    real = open_store(source, StoreOptions(endpoint=s3.endpoint), Counters())
    (tmp_path / "target").mkdir()
    local = open_store(parse_source(f"file://{tmp_path}/target"), StoreOptions(), Counters())
    faulty = FaultyStore(real, {WRONG_BYTES: 0.4}, seed=seed)
    copier = Copier(bucket=None, moved=lambda _: None, stopping=threading.Event())
    target = PatientStore(local, Counters(), deadline_s=60)
    for page in real.list_all(""):
        for info in page:
            copier.copy(Found(info.key, faulty, info), target, info.key)
    assert faulty.injected[WRONG_BYTES] > 0
    assert read_tree(tmp_path / "target") == FILES


def test_what_cannot_be_copied_is_named_and_the_rest_is_copied(
    source: Path, target: Path, tmp_path: Path
) -> None:
    write_tree(target, {"a": b"a file where a folder should be"})
    with pytest.raises(StoreError, match="5 of 12 objects could not be copied; a/"):
        run(migrate(tmp_path, outside(source), outside(target)))
    assert set(read_tree(target)) == {path for path in FILES if path[:2] != "a/"} | {"a"}


@pytest.mark.parametrize(
    ("to", "options", "what"),
    [
        ("SOURCE", {}, "overlap"),
        ("SOURCE/below", {}, "overlap"),
        ("https://host/folder", {}, "not written to"),
        ("TARGET", {"exclud": "x"}, "exclud is not an option"),
        ("TARGET", {"threads": "many"}, "threads: 'many'"),
        ("TARGET", {"rate": "10Gb/s"}, "rate"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_copied(
    source: Path, target: Path, tmp_path: Path, to: str, options: dict[str, str], what: str
) -> None:
    to = to.replace("SOURCE", str(source)).replace("TARGET", str(target))
    with pytest.raises(UsageError, match=what):
        run(migrate(tmp_path, outside(source), outside(to), **options))
    assert not target.exists() or not list(target.iterdir())


def test_an_option_of_the_other_engine_is_told_with_its_reason(
    source: Path, target: Path, tmp_path: Path
) -> None:
    _, work = run(migrate(tmp_path, outside(source), outside(target), **{"check-all": "true"}))
    assert [reason for reason, _ in work.told] == ["NoEffect"]


def test_when_its_time_is_over_it_fails_and_can_go_on(
    source: Path, target: Path, tmp_path: Path
) -> None:
    bench = migrate(tmp_path, outside(source), outside(target), timeout="0.3s", rate="1KiB/s")
    with pytest.raises(UsageError, match="timeout is over"):
        run(bench)
    bench.manifest["spec"]["options"] = {}
    run(bench)
    assert read_tree(target) == FILES
