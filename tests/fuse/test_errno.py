"""Every error of ours has its number for the kernel."""

import errno

import pytest

from penstock import errors
from penstock.fuse.errno_table import errno_of

OURS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.PenstockError)
]


@pytest.mark.parametrize("kind", OURS)
def test_each_error_becomes_a_number(kind: type[errors.PenstockError]) -> None:
    words = ("spec.mounts", "what") if kind is errors.SpecProblem else ("what",)
    assert errno_of(kind(*words)) in errno.errorcode


def test_what_readers_see() -> None:
    assert errno_of(errors.ObjectChanged("x")) == errno.ESTALE
    assert errno_of(errors.StaleInode("x")) == errno.ESTALE
    assert errno_of(errors.ObjectNotFound("x")) == errno.ENOENT
    assert errno_of(errors.StoreError("x")) == errno.EIO
    assert errno_of(ValueError("a bug")) == errno.EIO
