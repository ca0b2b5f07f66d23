"""Constants and structs of the FUSE kernel protocol (include/uapi/linux/fuse.h)."""

import struct
from enum import IntEnum, IntFlag

from typing_extensions import Buffer

KERNEL_VERSION = 7
KERNEL_MINOR = 40  # the version that we implement; the kernel adapts to it


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52


OP_COUNT = 64
CHANGING_OPS = (
    Op.SETATTR,
    Op.SYMLINK,
    Op.MKNOD,
    Op.MKDIR,
    Op.UNLINK,
    Op.RMDIR,
    Op.RENAME,
    Op.LINK,
    Op.WRITE,
    Op.SETXATTR,
    Op.REMOVEXATTR,
    Op.CREATE,
    Op.FALLOCATE,
    Op.RENAME2,
    Op.COPY_FILE_RANGE,
    Op.TMPFILE,
)


class Init(IntFlag):
    """INIT flags, as one 64-bit number: the high half is sent as flags2."""

    ASYNC_READ = 1 << 0
    BIG_WRITES = 1 << 5
    DO_READDIRPLUS = 1 << 13
    ASYNC_DIO = 1 << 15
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24
    INIT_EXT = 1 << 30
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class OpenFlag(IntFlag):
    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    CACHE_DIR = 1 << 3
    PASSTHROUGH = 1 << 7


class Notify(IntEnum):
    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RESEND = 7


IN_HEADER = struct.Struct("<IIQQIIIHH")  # len opcode unique nodeid uid gid pid ext_len padding
OUT_HEADER = struct.Struct("<IiQ")  # len error unique
ATTR = struct.Struct(
    "<QQQQQQIIIIIIIIII"
)  # ino size blocks a/m/ctime their nsecs mode nlink uid gid rdev blksize flags
ENTRY = struct.Struct(
    "<QQQQII"
)  # nodeid generation entry_valid attr_valid their nsecs; ATTR follows
ATTR_OUT = struct.Struct("<QII")  # attr_valid nsec dummy; ATTR follows
INIT_IN = struct.Struct("<IIII")  # major minor max_readahead flags; flags2 follows from 7.36
INIT_OUT = struct.Struct("<IIIIHHIIHHIIH22x")
OPEN_OUT = struct.Struct("<QIi")  # fh open_flags backing_id
READ_IN = struct.Struct("<QQI")  # fh offset size; READDIR and READDIRPLUS begin the same way
RELEASE_IN = struct.Struct("<Q")  # fh
GETXATTR_IN = struct.Struct("<II")  # size padding
DIRENT = struct.Struct("<QQII")  # ino off namelen type; the name follows, padded to 8
STATFS = struct.Struct(
    "<QQQQQIIII24x"
)  # blocks bfree bavail files ffree bsize namelen frsize padding
INVAL_INODE = struct.Struct("<Qqq")  # ino off len
STORE = struct.Struct("<QQII")  # nodeid offset size padding; the bytes follow
INVAL_ENTRY = struct.Struct("<QII")  # parent namelen flags; the name and a NUL follow

UNIQUE_RESENT = 1 << 63

IN_HEADER_BYTES = IN_HEADER.size
OUT_HEADER_BYTES = OUT_HEADER.size

DT_DIR = 4
DT_REG = 8

# _IOW(229, 1, struct fuse_backing_map) and _IOW(229, 2, uint32_t)
IOC_CLONE = 0x8004E500
IOC_BACKING_OPEN = 0x4010E501
IOC_BACKING_CLOSE = 0x4004E502
BACKING_MAP = struct.Struct("<iIQ")  # fd flags padding


def is_resent(request: Buffer) -> bool:
    """Whether a previous server read this request and did not answer it (Linux 6.9 and later)."""
    return bool(IN_HEADER.unpack_from(request)[2] & UNIQUE_RESENT)
