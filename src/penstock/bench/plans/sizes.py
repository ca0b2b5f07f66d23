"""How many files a data set gets, and of which size: for who makes it, and for who looks whether
there is room for it. Pure."""

from penstock.bench.dataset import LARGE_BYTES, SMALL_BYTES
from penstock.bench.plans.model import DatasetPlan
from penstock.errors import UsageError

SHARD_BYTES = 130_000_000  # of tfrecord and webdataset


def planned_bytes(plan: DatasetPlan) -> int | None:
    """About how large it will be; None for one that is given. Files are whole: a wish of 48 MiB
    gives one shard of 130 MB."""
    if plan.form == "given":
        return None
    count, size_bytes = count_and_size(plan)
    return count * size_bytes


def count_and_size(plan: DatasetPlan) -> tuple[int, int]:
    """How many files, and how large each is in the mean."""
    usual = {"small": SMALL_BYTES, "jpeg": SMALL_BYTES, "large": LARGE_BYTES}
    size_bytes = usual.get(plan.form, SHARD_BYTES)
    if plan.files is not None and plan.size_bytes is not None:
        return plan.files, max(1, plan.size_bytes // plan.files)
    if plan.files is not None:
        return plan.files, size_bytes
    if plan.size_bytes is not None:
        return max(1, round(plan.size_bytes / size_bytes)), size_bytes
    raise UsageError("a data set to be made needs a number of files, or a size")
