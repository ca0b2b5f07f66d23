"""What a mount tells of the plan that it follows."""

import time
from typing import Any

from tests.support.mounts import Mount


def plan_of(mount: Mount) -> dict[str, Any]:
    return mount.stats()["plans"][0]


def is_settled(mount: Mount) -> bool:
    """Nothing comes any more: not now, and not in the moment between asking and starting."""
    for _ in range(3):
        stats = mount.stats()
        plan = stats["plans"][0]
        if plan["ahead"] != plan["end"] or stats["gets_in_flight"]:
            return False
        time.sleep(0.02)
    return True
