"""What an attempt leaves whose keeper was killed, and could clear nothing itself."""

import shutil
from typing import Any

from penstock.resources.jobs.cgroups import remove_groups
from penstock.resources.jobs.containers import remove_containers
from penstock.resources.jobs.processes import end_marked


def clear(uid: str, record: dict[str, Any]) -> None:
    """Processes, containers, cgroups and files, by what the keeper wrote down at its beginning."""
    end_marked(uid)
    if record["engine"]:
        remove_containers(record["engine"], uid)
    remove_groups(record["groups"])
    shutil.rmtree(record["scratch"], ignore_errors=True)
