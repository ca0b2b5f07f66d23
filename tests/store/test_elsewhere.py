"""Chunks of an upload that are made in a thread of their own."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from typing_extensions import Buffer

from penstock.metrics import Counters
from penstock.store.connect import StoreOptions, open_store
from penstock.store.elsewhere import made_elsewhere
from penstock.store.source import parse_source
from tests.support.s3 import S3


def test_an_object_is_copied_from_bucket_to_bucket(s3: S3) -> None:
    """obstore takes what is uploaded within its own runtime, and panics if that asks it."""
    data = bytes(range(256)) * 1000
    (s3.bucket("copied-from") / "object").write_bytes(data)
    copied = s3.bucket("copied-to") / "object"
    options = StoreOptions(endpoint=s3.endpoint)
    source, target = (
        open_store(parse_source(f"s3://{bucket}"), options, Counters())
        for bucket in ("copied-from", "copied-to")
    )
    (page,) = source.list_all("")
    (info,) = page

    def chunks() -> Iterator[Buffer]:
        for start in range(0, len(data), 100_000):
            length = min(100_000, len(data) - start)
            yield source.get("object", info.version, start, length, len(data))

    target.put_file("object", chunks, len(data))
    assert copied.read_bytes() == data


def test_what_making_them_raises_comes_out() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("broken")

    made = made_elsewhere(chunks)
    assert next(made) == b"one"
    with pytest.raises(ValueError, match="broken"):
        next(made)


def test_closed_early_no_more_are_made_and_no_thread_is_left() -> None:
    count = 0

    def chunks() -> Iterator[bytes]:
        nonlocal count
        while True:
            count += 1
            yield b"more"

    before = set(threading.enumerate())
    with closing(made_elsewhere(chunks)) as made:
        assert next(made) == b"more"
    assert set(threading.enumerate()) <= before
    assert count <= 6
