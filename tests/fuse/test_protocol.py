"""The layouts have the sizes that the kernel's header gives them."""

from penstock.fuse import protocol as p


def test_sizes() -> None:
    sizes = {
        p.IN_HEADER: 40, p.OUT_HEADER: 16, p.ATTR: 88, p.ENTRY: 40, p.ATTR_OUT: 16, p.INIT_OUT: 64,
        p.OPEN_OUT: 16, p.DIRENT: 24, p.STATFS: 80, p.INVAL_INODE: 24, p.INVAL_ENTRY: 16,
        p.BACKING_MAP: 16,
    }  # fmt: skip
    assert {struct.format: struct.size for struct in sizes} == {
        struct.format: size for struct, size in sizes.items()
    }


def test_the_high_half_of_the_abilities_travels_apart() -> None:
    assert p.Init.PASSTHROUGH >> 32 == 1 << 5
    assert p.Init.HAS_RESEND >> 32 == 1 << 7
