"""DataBackup, and back."""

import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

from penstock.daemon.settings import Part
from penstock.errors import UsageError
from penstock.resources.operations.backup import ENDING, cached_paths, restore
from penstock.resources.operations.load import load_listed
from penstock.store.source import parse_source
from tests.conftest import S3, SECRET_KEY, Mount, Mounter, write_tree
from tests.resources.operations.working import Bench, run

FILES = {f"deep/{number}.bin": bytes([number]) * 3000 for number in range(8)}


@pytest.fixture
def source(s3: S3) -> str:
    bucket = s3.bucket(f"backup{len(list(s3.folder.iterdir()))}")
    write_tree(bucket, FILES)
    return f"s3://{bucket.name}"


@pytest.fixture
def mount(s3: S3, source: str, mounter: Mounter) -> Mount:
    mount = mounter(source, "--endpoint", s3.endpoint, "--refresh", "never")
    for number in range(3):
        (mount.path / f"deep/{number}.bin").read_bytes()
        mount.wait_until_cached(f"deep/{number}.bin")
    return mount


def catalog_in(state: Path) -> Path:
    (found,) = (state / "catalogs").glob("*.sqlite")
    return found


@pytest.fixture
def bench(mount: Mount, source: str, s3: S3, state: Path, tmp_path: Path) -> Bench:
    return Bench(
        {"apiVersion": "data.fluid.io/v1alpha1", "kind": "DataBackup",
         "metadata": {"name": "backup"},
         "spec": {"dataset": "set", "backupPath": f"local://{tmp_path}/backups/"}},
        str(tmp_path / "work"), {"default/set": (str(mount.path), [("", source, s3.endpoint)])},
        catalogs={"default/set": str(catalog_in(state))},
    )  # fmt: skip


def test_a_backup_holds_the_catalog_and_what_is_cached_and_no_secret(
    bench: Bench, tmp_path: Path
) -> None:
    infos, _ = run(bench)
    assert infos["BackupLocationPath"] == f"local://{tmp_path}/backups/"
    assert infos["BackupLocationNodeName"]
    assert (infos["Files"], infos["CachedFiles"]) == ("8", "3")
    file = tmp_path / "backups" / f"set-default{ENDING}"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert not list(Path(bench.folder).iterdir())
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "catalog.sqlite", "cached.jsonl"]
        held = b"".join(archive.extractfile(name).read() for name in archive.getnames())  # type: ignore[union-attr]
    assert SECRET_KEY.encode() not in held


def test_what_was_backed_up_comes_back(
    bench: Bench, source: str, s3: S3, mount: Mount, mounter: Mounter, state: Path, tmp_path: Path
) -> None:
    run(bench)
    before = catalog_in(state)
    mount.umount()
    before.unlink()
    restore(tmp_path / "backups", before, name="set-default",
            parts=(Part("", parse_source(source)),))  # fmt: skip
    paths = cached_paths(tmp_path / "backups", "set-default")
    assert sorted(paths) == [f"deep/{number}.bin" for number in range(3)]
    again = mounter(
        source, "--endpoint", s3.endpoint, "--refresh", "never", "--cache-dir", tmp_path / "fresh"
    )
    assert "list" not in again.stats()["store_requests_by_verb"]
    assert len(list((again.path / "deep").iterdir())) == len(FILES)
    load_listed(again.path, [*paths, "deep/gone.bin"])
    assert again.gets() == 3


def test_a_catalog_that_is_there_stays(bench: Bench, state: Path, tmp_path: Path) -> None:
    run(bench)
    (tmp_path / "catalog").write_bytes(b"another")
    restore(tmp_path / "backups", tmp_path / "catalog")
    assert (tmp_path / "catalog").read_bytes() == b"another"


def test_a_backup_of_other_mounts_is_refused(bench: Bench, tmp_path: Path) -> None:
    run(bench)
    with pytest.raises(UsageError, match="other mounts"):
        restore(tmp_path / "backups", tmp_path / "catalog",
                parts=(Part("", parse_source("s3://other")),))  # fmt: skip
    assert not (tmp_path / "catalog").exists()


@pytest.mark.parametrize("damage", ["cut", "noise", "no catalog", "bad catalog", "other", "links"])
def test_what_is_no_backup_is_told_and_leaves_nothing(
    bench: Bench, tmp_path: Path, damage: str
) -> None:
    run(bench)
    file = tmp_path / "backups" / f"set-default{ENDING}"
    good = tmp_path / "good"
    with tarfile.open(file) as archive:
        archive.extractall(good, filter="data")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "noise":
        file.write_bytes(b"noise" * 1000)
    else:
        if damage == "no catalog":
            (good / "catalog.sqlite").unlink()
        elif damage == "bad catalog":
            (good / "catalog.sqlite").write_bytes(b"x" * 10_000)
        elif damage == "other":
            manifest = json.loads((good / "manifest.json").read_text())
            (good / "manifest.json").write_text(json.dumps({**manifest, "format": 9}))
        else:
            (good / "catalog.sqlite").unlink()
            (good / "catalog.sqlite").symlink_to("/etc/passwd")
        with tarfile.open(file, "w:gz") as archive:
            for path in sorted(good.iterdir()):
                archive.add(path, path.name)
    with pytest.raises(UsageError):
        restore(file, tmp_path / "catalogs/set.sqlite")
    assert not list((tmp_path / "catalogs").glob("*"))


@pytest.mark.parametrize("there", [[], ["a", "b"]])
def test_a_folder_without_the_backup_is_told(tmp_path: Path, there: list[str]) -> None:
    for name in there:
        (tmp_path / f"{name}{ENDING}").touch()
    with pytest.raises(UsageError, match="holds"):
        restore(tmp_path, tmp_path / "catalog", name="set-default" if there else None)


def test_it_is_consistent_while_the_mount_refreshes(
    bench: Bench, mount: Mount, s3: S3, source: str, tmp_path: Path
) -> None:
    bucket = s3.folder / source.removeprefix("s3://")
    write_tree(bucket, {f"new/{number}": b"" for number in range(50)})
    mount.refresh()
    (bucket / "deep/7.bin").unlink()
    mount.refresh()
    infos, _ = run(bench)
    assert infos["Files"] == "57"
    restore(tmp_path / "backups", tmp_path / "catalog")
    with sqlite3.connect(tmp_path / "catalog") as catalog:
        alive = catalog.execute("SELECT count(*) FROM nodes WHERE size IS NOT NULL").fetchone()[0]
    catalog.close()
    assert alive == 57
