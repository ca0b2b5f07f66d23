"""DataBackup, and back."""

import json
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.daemon.control import ask
from penstock.daemon.registry import find_served
from penstock.daemon.settings import Part
from penstock.errors import UsageError
from penstock.resources.operations.backup import ENDING, cached_paths, restore
from penstock.resources.operations.load import load_listed
from penstock.store.source import parse_source
from tests.support.mounts import Mount, Mounter
from tests.support.operation_work import Bench, operation, run
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, ObjectPath
from tests.support.shared_mounts import sharing
from tests.support.trees import write_tree

FILES = {f"deep/{number}.bin": bytes([number]) * 3000 for number in range(8)}
NAME = f"set-default{ENDING}"


def bench_of(s3: S3, bucket: ObjectPath, mount: Mount, state: Path, folder: Path) -> Bench:
    (catalog,) = (state / "catalogs").glob("*.sqlite")
    return Bench(
        operation("DataBackup", {"dataset": "set", "backupPath": f"local://{folder}/backups/"}),
        str(folder / "work"),
        {"default/set": (str(mount.path), [("", bucket.source, s3.endpoint)])},
        catalogs={"default/set": str(catalog)},
    )


def count(catalog: Path, condition: str) -> int:
    with closing(sqlite3.connect(catalog)) as opened:
        return opened.execute(f"SELECT count(*) FROM nodes WHERE {condition}").fetchone()[0]


@dataclass(frozen=True)
class Made:
    """A backup of a mount that goes on."""

    source: str
    bench: Bench
    infos: dict[str, Any]
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / NAME


@pytest.fixture(scope="module")
def made(_s3_server: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder, bucket = tmp_path_factory.mktemp("backup"), _s3_server.bucket("backup")
    write_tree(bucket, {**FILES, "deep/gone.bin": b"gone"})
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with sharing(folder, keys) as mounter:
        mount = mounter(bucket.source, "--endpoint", _s3_server.endpoint, "--refresh", "never")
        for number in range(3):
            (mount.path / f"deep/{number}.bin").read_bytes()
            mount.wait_until_cached(f"deep/{number}.bin")
        # The catalog keeps a row of a file that is gone while somebody has it open.
        with (mount.path / "deep/gone.bin").open("rb"):
            (bucket / "deep/gone.bin").unlink()
            mount.refresh()
            bench = bench_of(_s3_server, bucket, mount, folder / "state", folder)
            infos, _ = run(bench)
        yield Made(bucket.source, bench, infos, folder / "backups")


def test_a_backup_holds_the_catalog_and_what_is_cached_and_no_secret(made: Made) -> None:
    assert made.infos["BackupLocationPath"] == f"local://{made.folder}/"
    assert made.infos["BackupLocationNodeName"]
    assert (made.infos["Files"], made.infos["CachedFiles"]) == ("8", "3")
    assert made.file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in made.folder.iterdir()] == [NAME]
    assert not list(Path(made.bench.folder).iterdir())
    with tarfile.open(made.file) as archive:
        assert archive.getnames() == ["manifest.json", "catalog.sqlite", "cached.jsonl"]
        held = b"".join(archive.extractfile(name).read() for name in archive.getnames())  # type: ignore[union-attr]
    assert b"deep/1.bin" in held
    assert SECRET_KEY.encode() not in held


def test_what_was_backed_up_comes_back(
    made: Made, s3: S3, mounter: Mounter, state: Path, tmp_path: Path
) -> None:
    catalog = state / "catalogs" / Path(made.bench.catalogs["default/set"]).name
    parts = (Part("", parse_source(made.source)),)
    restore(made.folder, catalog, name="set-default", parts=parts)
    assert count(Path(made.bench.catalogs["default/set"]), "dead = 1") == 1
    assert count(catalog, "dead = 1") == 0
    paths = cached_paths(made.folder, "set-default")
    assert sorted(paths) == [f"deep/{number}.bin" for number in range(3)]
    mount = mounter(made.source, "--endpoint", s3.endpoint, "--refresh", "never")
    assert "list" not in mount.stats()["store_requests_by_verb"]
    assert len(list((mount.path / "deep").iterdir())) == len(FILES)
    load_listed(mount.path, [*paths, "deep/missing.bin"])
    assert mount.gets() == 3


def test_a_catalog_that_is_there_stays(made: Made, tmp_path: Path) -> None:
    (tmp_path / "catalog").write_bytes(b"another")
    restore(made.folder, tmp_path / "catalog")
    assert (tmp_path / "catalog").read_bytes() == b"another"


def test_a_backup_of_other_mounts_is_refused(made: Made, tmp_path: Path) -> None:
    parts = (Part("", parse_source("s3://other")),)
    with pytest.raises(UsageError, match="other mounts"):
        restore(made.folder, tmp_path / "catalog", parts=parts)
    assert not (tmp_path / "catalog").exists()


@pytest.mark.parametrize("damage", ["cut", "noise", "no catalog", "bad catalog", "other", "links"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    made: Made, tmp_path: Path, damage: str
) -> None:
    file, good = tmp_path / NAME, tmp_path / "good"
    shutil.copy(made.file, file)
    with tarfile.open(file) as archive:
        archive.extractall(good, filter="data")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "noise":
        file.write_bytes(b"noise" * 1000)
    else:
        if damage == "bad catalog":
            (good / "catalog.sqlite").write_bytes(b"x" * 10_000)
        elif damage == "other":
            manifest = json.loads((good / "manifest.json").read_text())
            (good / "manifest.json").write_text(json.dumps({**manifest, "format": 9}))
        else:
            (good / "catalog.sqlite").unlink()
        if damage == "links":
            (good / "catalog.sqlite").symlink_to("/etc/passwd")
        with tarfile.open(file, "w:gz") as archive:
            for path in sorted(good.iterdir()):
                archive.add(path, path.name)
    with pytest.raises(
        UsageError, match="another Penstock" if damage == "other" else "not a backup"
    ):
        restore(file, tmp_path / "catalogs/set.sqlite")
    assert not list((tmp_path / "catalogs").glob("*"))


@pytest.mark.parametrize("there", [[], ["a", "b"]])
def test_a_folder_without_the_backup_is_told(tmp_path: Path, there: list[str]) -> None:
    for name in there:
        (tmp_path / f"{name}{ENDING}").touch()
    with pytest.raises(UsageError, match="holds"):
        restore(tmp_path, tmp_path / "catalog", name="set-default" if there else None)


def test_it_is_consistent_while_the_mount_refreshes(
    s3: S3, mounter: Mounter, state: Path, tmp_path: Path
) -> None:
    bucket = s3.bucket("backup-refreshes")
    write_tree(bucket, FILES)
    mount = mounter(bucket.source, "--endpoint", s3.endpoint, "--refresh", "never")
    bench = bench_of(s3, bucket, mount, state, tmp_path)

    def change() -> None:
        for number in range(5):
            write_tree(bucket, {f"new/{number}-{index}": b"" for index in range(10)})
            ask(find_served(mount.path).socket_path, "refresh", timeout_s=60)

    def back_up() -> int:
        infos, _ = run(bench)
        catalog = tmp_path / "catalog"
        catalog.unlink(missing_ok=True)
        restore(tmp_path / "backups", catalog)
        assert infos["Files"] == str(count(catalog, "size IS NOT NULL"))
        return int(infos["Files"])

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change)
        while not changes.done():
            back_up()
        changes.result()
    assert back_up() == len(FILES) + 50
