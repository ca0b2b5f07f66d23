"""An ordinary user mounts through fusermount3, and is told what only root can have."""

import json
import random
import sys
from hashlib import sha256

from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.users import NOBODY, User, wait_until_unserved

SMALL = {f"a/{i}.jpg": random.Random(i).randbytes(20_000) for i in range(5)}


def assert_user_reads_all(user: User) -> None:
    found = user.run("sha256sum", *(user.mountpoint / name for name in SMALL)).stdout
    sums = [f"{sha256(data).hexdigest()}  {user.mountpoint / name}" for name, data in SMALL.items()]
    assert found.splitlines() == sums


def test_an_ordinary_user_mounts_reads_kills_the_server_and_unmounts(user: User, s3: S3) -> None:
    assert "CapEff:\t0000000000000000" in user.run("cat", "/proc/self/status").stdout
    write_tree(s3.bucket("of-a-user"), SMALL)
    printed = user.mount("s3://of-a-user", "--endpoint", s3.endpoint)
    assert "5 files" in printed
    assert "note: readahead stays at 128 KiB: raising it needs root" in printed
    (entry,) = user.mounted()
    assert " - fuse.penstock s3://of-a-user " in entry
    assert f"user_id={NOBODY},group_id={NOBODY}" in entry
    assert_user_reads_all(user)
    found = user.run(
        "find", user.mountpoint, "-type", "f", "-user", str(NOBODY), "-printf", r"%P\n"
    )
    assert sorted(found.stdout.split()) == sorted(SMALL)
    stats = json.loads(user.penstock("stats", user.mountpoint, "-o", "json").stdout)
    assert (stats["mode"], stats["store_bytes"]) == ("pagecache", 100_000)
    assert "raising it needs root" in user.penstock("doctor", user.mountpoint).stdout
    others = user.as_root("ls", user.mountpoint)
    assert others.returncode != 0
    assert "Permission denied" in others.stderr
    # Its server is killed, and replaced.
    assert user.run("kill", "-9", str(stats["pid"])).returncode == 0
    assert_user_reads_all(user)
    assert user.penstock("upgrade", user.mountpoint).returncode == 0
    after = json.loads(user.penstock("stats", user.mountpoint, "-o", "json").stdout)
    assert (after["restarts"], after["supervisor_pid"]) == (1, stats["supervisor_pid"])
    result = user.penstock("umount", user.mountpoint)
    assert (result.returncode, result.stderr) == (0, "")
    assert user.mounted() == []
    wait_until_unserved(user.mountpoint)


def test_options_that_need_root_are_rejected_with_the_reason(user: User) -> None:
    write_tree(user.home / "data", SMALL)
    words = ("mount", f"file://{user.home}/data", user.mountpoint, "-b")
    nowhere = {"HOME": "/nonexistent", "PENSTOCK_STATE_DIR": ""}
    without_fuse = ("env", "PATH=/nonexistent", sys.executable, "-m", "penstock", *words)
    for result, *message in (
        (
            user.penstock(*words, "--mode=passthrough"),
            "--mode passthrough: it needs root\nhint: use --mode auto",
        ),
        (user.penstock(*words, "--allow-other"), "user_allow_other into /etc/fuse.conf"),
        (user.run(*without_fuse), "fusermount3", "hint: apt-get install fuse3"),
        (user.penstock("mount", "s3://x", user.mountpoint, "-b", **nowhere), "/nonexistent"),
    ):
        assert result.returncode == 2, result.stderr
        assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["penstock", "hint"]
        assert all(part in result.stderr for part in message)
        assert user.mounted() == []
        wait_until_unserved(user.mountpoint)


def test_state_and_cache_of_a_user_lie_in_the_home_directory(user: User) -> None:
    write_tree(user.home / "data", SMALL)
    user.mount(f"file://{user.home}/data", PENSTOCK_STATE_DIR="")
    assert (user.home / ".local/state/penstock/catalogs").is_dir()
    assert (user.home / ".cache/penstock/index.sqlite").is_file()
    assert (user.home / ".cache/penstock").stat().st_mode & 0o077 == 0
    assert (user.home / ".local/state/penstock").stat().st_mode & 0o077 == 0
