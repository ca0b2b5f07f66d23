"""Options, sources and other commands as people mistype them: one line, and a hint."""

from pathlib import Path

import pytest

from tests.support.refusals import Refuse, one_refusal
from tests.support.trees import read_tree, write_tree

SECRET = "hunter2hunter2"


# -- quotas -----------------------------------------------------------------------------


@pytest.mark.parametrize("quota", ["0", "-1", "99PiB", "many"])
def test_a_quota_that_no_cache_can_have(
    refuse: Refuse, source: str, tmp_path: Path, quota: str
) -> None:
    refuse(source, "--cache-dir", tmp_path / "c", "--cache-size", quota, says="--cache-size|quota")


BAD_TIERS = [
    "SSD", "SSD:/nvme", "TAPE:/tape:1GiB", "SSD::1GiB", "SSD:/nvme:1GiB:high", "SSD:/x:1GiB:top=1",
    "SSD:/x:1GiB:high=0.5,low=0.9", "SSD:/x:1GiB:high=2", "SSD:/x:1GiB:low=0", "SSD:/x:1GiB:high=x",
]  # fmt: skip


@pytest.mark.parametrize("tier", BAD_TIERS)
def test_a_tier_that_is_none(refuse: Refuse, source: str, tier: str) -> None:
    refuse(source, "--tier", tier, says=f"--tier {tier}")


@pytest.mark.parametrize("quota", ["0", "-1", "99PiB"])
def test_a_tier_whose_quota_no_tier_can_have(
    refuse: Refuse, source: str, tmp_path: Path, quota: str
) -> None:
    refuse(source, "--tier", f"SSD:{tmp_path}/t:{quota}", says=f"{tmp_path}/t.*quota")


# -- options ----------------------------------------------------------------------------

MISTYPED = {
    "--chache-dir /x": "--chache-dir",
    "--mode pagecahce": "pagecahce",
    "--refresh soon": "--refresh.*soon",
    "--deadline soon": "--deadline.*soon",
    "--deadline 0": "--deadline.*1s",
    "--deadline 1d": "--deadline.*1h",
    "--block-size 8 MiB": "MiB",
    "--block-size 100": "--block-size",
    "--buffer-size 1MiB": "--buffer-size",
    "--prefetch -1": "--prefetch",
    "--threads 0": "--threads",
    "--dir-mode 0999": "--dir-mode",
    "--uid me": "--uid.*me",
    "--uid 99999999999": "--uid",
    "--attr-cache long": "--attr-cache.*long",
    "--entry-cache -1": "--entry-cache",
    "--no-cache --cache-size 1GiB": "--no-cache and --cache-size",
    "--tier SSD:/x:1GiB --cache-dir /y": "--tier and --cache-dir",
    "--endpoint http://127.0.0.1:1": "--endpoint",
    "--manifest /x": "--manifest",
    "-o kernel_cache,ro,entry_timout=7200": "-o entry_timout=7200",
}


@pytest.mark.parametrize("options", MISTYPED)
def test_an_option_with_a_mistake_in_it(refuse: Refuse, source: str, options: str) -> None:
    refuse(source, *options.split(), says=MISTYPED[options])


def test_a_mistyped_option_is_answered_with_the_right_one(refuse: Refuse, source: str) -> None:
    assert "--cache-dir" in refuse(source, "--chache-dir", "/x", says="--chache-dir")
    assert "kernel_cache" in refuse(source, "-o", "kernel_cach", says="kernel_cach")


# -- sources ----------------------------------------------------------------------------


@pytest.mark.parametrize(  # tests/store/test_source.py has more of them
    "bad", ["", "bucket", "s3:/bucket", "s3:///x", "S4://bucket", "s3://bucket:9000/x", "https://"]
)
def test_a_source_that_is_none(refuse: Refuse, bad: str) -> None:
    refuse(bad, says=bad.split(":")[0] or "source")


@pytest.mark.parametrize(
    "bad", ["s3://AKIA:{}@bucket/x", "https://me:{}@host/x", "http://{}@host/x"]
)
def test_keys_in_a_source_are_refused_and_not_repeated(refuse: Refuse, bad: str) -> None:
    assert SECRET not in refuse(bad.format(SECRET), says="credentials do not belong")


@pytest.mark.usefixtures("keys")
def test_keys_in_an_endpoint_are_refused_and_not_repeated(refuse: Refuse) -> None:
    endpoint = f"http://me:{SECRET}@127.0.0.1:1"
    assert SECRET not in refuse("s3://b", "--endpoint", endpoint, says="--endpoint|credentials")


@pytest.mark.usefixtures("keys")
def test_an_endpoint_that_is_no_address(refuse: Refuse) -> None:
    refuse("s3://b", "--endpoint", "http://", says="endpoint")
    refuse("s3://b", "--endpoint", "ftp://host", says="endpoint")


def test_a_manifest_for_a_store_that_lists_itself(refuse: Refuse, tmp_path: Path) -> None:
    refuse("s3://bucket", "--manifest", tmp_path / "m", says="--manifest.*s3://")


def test_a_manifest_that_is_missing_or_wrong(refuse: Refuse, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest"
    address = "http://127.0.0.1:1/data"
    refuse(address, "--manifest", manifest, says=f"--manifest {manifest}")
    for line in ("five file", "12", "-3 file", '{"path": "x"}', '{"path": "x", "size": -1}', "{"):
        manifest.write_text(f"# sizes and paths\n\n12 good\n{line}\n")
        refuse(address, "--manifest", manifest, says=f"{manifest}:4")


# -- other commands ---------------------------------------------------------------------

NOT_MOUNTED = ["umount {}", "umount {} --lazy", "stats {}", "stats {} -o json", "refresh {}"]
NOT_MOUNTED += ["doctor {}", "umount {}/none", "stats {}/none"]


@pytest.mark.parametrize("command", NOT_MOUNTED)
def test_a_place_where_nothing_is_mounted(tmp_path: Path, command: str) -> None:
    one_refusal(command.format(tmp_path).split(), says=f"{tmp_path}.* not mounted by Penstock")


def test_a_mount_of_someone_else_is_not_unmounted() -> None:
    one_refusal(["umount", "/proc"], says="/proc is not mounted by Penstock")
    assert Path("/proc/self").exists()


@pytest.mark.parametrize("verb", ["ls", "clear", "verify"])
@pytest.mark.parametrize("place", ["", "/none", "/file"])
def test_a_folder_that_is_no_cache(tmp_path: Path, verb: str, place: str) -> None:
    write_tree(tmp_path, {"file": b"precious"})
    one_refusal(["cache", verb, "--cache-dir", f"{tmp_path}{place}"], says=f"{tmp_path}{place} is")
    assert (tmp_path / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("verb", ["ls", "clear", "verify"])
def test_a_cache_whose_index_is_not_an_index(tmp_path: Path, verb: str) -> None:
    notes = {"index.sqlite": b"these are my notes, not a database" * 100}
    write_tree(tmp_path, notes)
    one_refusal(["cache", verb, "--cache-dir", str(tmp_path)], says=str(tmp_path))
    assert read_tree(tmp_path) == notes


INCOMPLETE = [
    "mout s3://b /x", "mount", "mount s3://b", "umount", "refresh", "doctor /x /y", "stats /x /y",
    "cache list", "stats /x -o yaml", "--verbose",
]  # fmt: skip


@pytest.mark.parametrize("command", INCOMPLETE)
def test_a_command_that_is_none(command: str) -> None:
    said = one_refusal(command.split(), says=".")
    assert "--help" in said.splitlines()[1]
