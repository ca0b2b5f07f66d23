"""Read two mounts of one bucket, as two machines would: the second needs no byte of the bucket."""

import sys
import time
from pathlib import Path

from penstock.api.mounts import stats


def read_all(mountpoint: str) -> int:
    return sum(len(path.read_bytes()) for path in sorted(Path(mountpoint).rglob("*.*")))


def counts(mountpoint: str) -> tuple[int, int]:
    """Return how many requests went to the bucket, and how many values the members had."""
    now = stats(mountpoint)
    gets = now["store_requests_by_verb"].get("get", 0)
    return gets, sum(member["hits"] for member in now["shared"]["members"])


def wait_until_filled(mountpoint: str) -> None:
    """Members are filled after readers are answered: wait until nothing is on its way."""
    while stats(mountpoint)["fetching"] or stats(mountpoint)["shared"]["queued_bytes"]:
        time.sleep(0.05)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: machines.py MOUNTPOINT MOUNTPOINT…")
    for number, mountpoint in enumerate(sys.argv[1:], start=1):
        size = read_all(mountpoint)
        gets, hits = counts(mountpoint)
        print(f"machine {number}: {size:,} bytes, {gets} requests to the bucket, {hits} hits")
        wait_until_filled(mountpoint)
