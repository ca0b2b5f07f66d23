"""The processes of a mount hold keys in memory: no core file of them is written, and no other
process of the same user can look into them."""

import os
from pathlib import Path

from tests.support.refusals import processes_that_name
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.users import NOBODY, User


def test_the_memory_of_a_users_mount_is_closed(user: User, s3: S3) -> None:
    write_tree(s3.bucket("no-cores"), {"file": b"x"})
    user.mount("s3://no-cores", "--endpoint", s3.endpoint)
    pids = [int(process.split(":")[0]) for process in processes_that_name(user.mountpoint)]
    assert pids
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{NOBODY}\t" in status
        # Of a process that may not be dumped, and only then, these belong to root.
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        assert user.run("cat", f"/proc/{pid}/environ").returncode != 0
