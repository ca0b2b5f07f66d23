"""DataBackup, and back."""

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.errors import UsageError
from penstock.operations.backup import ENDING, cached_paths, restore
from penstock.operations.load import load_listed
from penstock.settings import Part
from penstock.store.source import parse_source
from tests.support.mounts import Mounter
from tests.support.operation_work import Bench, operation, run
from tests.support.s3 import KEYS, S3, SECRET_KEY
from tests.support.shared_mounts import sharing
from tests.support.trees import write_tree

FILES = {f"deep/{number}.bin": bytes([number]) * 3000 for number in range(8)}
NAME = f"set-default{ENDING}"


def count(catalog: Path, condition: str) -> int:
    with closing(sqlite3.connect(catalog)) as opened:
        return opened.execute(f"SELECT count(*) FROM nodes WHERE {condition}").fetchone()[0]


class Made(NamedTuple):
    """A backup of a mount that goes on."""

    source: str
    bench: Bench
    infos: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def made(_s3_server: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder, bucket = tmp_path_factory.mktemp("backup"), _s3_server.bucket("backup")
    write_tree(bucket, {**FILES, "deep/gone.bin": b"gone"})
    with sharing(folder, KEYS) as mounter:
        mount = mounter(bucket.source, "--endpoint", _s3_server.endpoint, "--refresh", "never")
        for number in range(3):
            (mount.path / f"deep/{number}.bin").read_bytes()
            mount.wait_until_cached(f"deep/{number}.bin")
        # The catalog keeps a row of a file that is gone while somebody has it open.
        with (mount.path / "deep/gone.bin").open("rb"):
            (bucket / "deep/gone.bin").unlink()
            mount.refresh()
            (catalog,) = (folder / "state/catalogs").glob("*.sqlite")
            spec = {"dataset": "set", "backupPath": f"local://{folder}/backups/"}
            bench = Bench(
                operation("DataBackup", spec),
                str(folder / "work"),
                {"default/set": (str(mount.path), [("", bucket.source, _s3_server.endpoint)])},
                catalogs={"default/set": str(catalog)},
            )
            infos, _ = run(bench)
        yield Made(bucket.source, bench, infos, folder / "backups")


def test_a_backup_holds_the_catalog_and_cached_files_and_no_secret(made: Made) -> None:
    assert made.infos["BackupLocationPath"] == f"local://{made.folder}/"
    assert made.infos["BackupLocationNodeName"]
    assert (made.infos["Files"], made.infos["CachedFiles"]) == ("8", "3")
    (file,) = made.folder.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (NAME, 0o600)
    assert not list(Path(made.bench.folder).iterdir())
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "catalog.sqlite", "cached.jsonl"]
        held = b"".join(archive.extractfile(name).read() for name in archive.getnames())  # type: ignore[union-attr]
    assert b"deep/1.bin" in held
    assert SECRET_KEY.encode() not in held


def test_a_backup_is_restored(made: Made, s3: S3, mounter: Mounter, state: Path) -> None:
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


def test_a_backup_of_other_mounts_is_rejected_and_the_catalog_kept(
    made: Made, tmp_path: Path
) -> None:
    catalog, parts = tmp_path / "catalog", (Part("", parse_source("s3://other")),)
    for folder, more, says in (
        (made.folder, {"parts": parts}, "other mounts"),
        (tmp_path, {}, "holds"),
        (made.folder, {"name": "another-default"}, "holds"),
    ):
        with pytest.raises(UsageError, match=says):
            restore(folder, catalog, **more)
    assert not catalog.exists()
    catalog.write_bytes(b"another")
    restore(made.folder, catalog)
    assert catalog.read_bytes() == b"another"


@pytest.mark.parametrize("damage", ["cut", "noise", "no catalog", "bad catalog", "other", "links"])
def test_a_damaged_backup_is_rejected_without_side_effects(
    made: Made, tmp_path: Path, damage: str
) -> None:
    file, held = tmp_path / NAME, tmp_path / "held"
    with tarfile.open(made.folder / NAME) as archive:
        archive.extractall(held, filter="data")
    catalog, manifest = held / "catalog.sqlite", held / "manifest.json"
    if damage == "other":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 9}))
    elif damage == "bad catalog":
        catalog.write_bytes(b"x" * 10_000)
    elif damage in ("no catalog", "links"):
        catalog.unlink()
    if damage == "links":
        catalog.symlink_to("/etc/passwd")
    with tarfile.open(file, "w:gz") as archive:
        for path in sorted(held.iterdir()):
            archive.add(path, path.name)
    if damage in ("cut", "noise"):
        file.write_bytes(file.read_bytes()[:1000] if damage == "cut" else b"noise" * 1000)
    message = "another release" if damage == "other" else "cannot be read as a backup"
    with pytest.raises(UsageError, match=message):
        restore(file, tmp_path / "catalogs/set.sqlite")
    assert not list((tmp_path / "catalogs").glob("*"))
