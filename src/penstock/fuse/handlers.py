"""One small method for each opcode of the kernel.

A handler gets (node id, request buffer, its length) and returns the parts of the reply.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.cache.fetch import FetchJob
from penstock.catalog.tree import ROOT, Node
from penstock.fuse import protocol as p
from penstock.fuse.backing import BackingFiles
from penstock.fuse.mounting import READAHEAD_KB
from penstock.fuse.peers import Peers
from penstock.fuse.session import (
    NO_REPLY,
    BlockingReply,
    FetchReply,
    FuseError,
    Handler,
    Reply,
    Request,
    SendReply,
)
from penstock.units import KIB, MIB
from penstock.vfs.filesystem import FileSystem

_BLOCK = 512
_PAGE = 4096
_MAX_BACKGROUND = 64  # the kernel's default of 12 would slow its readahead
# Of files, and of directories: with 1 programs such as find do not count sub-folders by it.
_LINKS = 1
_NAME_MAX = 255
# The place in a listing behind `.`; the place behind `..` is the root's number, which no child has.
# Other places are the numbers of children, none of which is as large.
_BEHIND_DOT = 1 << 62
_XATTR_VERSION = b"user.penstock.version"
_XATTR_CACHED = b"user.penstock.cached"


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What the kernel shows, and for how long it may cache it."""

    uid: int
    gid: int
    file_mode: int = 0o444
    dir_mode: int = 0o555
    attr_timeout_s: float = 86400.0  # long: we notify the kernel of changes
    entry_timeout_s: float = 86400.0
    max_read_bytes: int = MIB
    cache_listings: bool = True
    stack_depth: int = 1
    resend: bool = True


class Handlers:
    def __init__(
        self,
        files: FileSystem,
        options: KernelOptions,
        backings: BackingFiles | None,
        on_init: Callable[[p.Init], None],
        peers: Peers | None = None,
    ) -> None:
        self._files = files
        self._peers = peers
        self._options = options
        self._backings = backings
        self._on_init = on_init
        self._attr_valid = _split_timeout(options.attr_timeout_s)
        self._entry_valid = _split_timeout(options.entry_timeout_s)
        # The reply for a missing name, which the kernel caches too.
        self._no_entry = p.ENTRY.pack(
            0, 0, self._entry_valid[0], 0, self._entry_valid[1], 0
        ) + bytes(p.ATTR.size)

    def table(self) -> dict[int, Handler]:
        table: dict[int, Handler] = {
            p.Op.INIT: self.init,
            p.Op.DESTROY: lambda _node, _request, _length: (),
            p.Op.LOOKUP: self.lookup,
            p.Op.FORGET: _no_reply,
            p.Op.BATCH_FORGET: _no_reply,
            p.Op.INTERRUPT: _no_reply,
            p.Op.GETATTR: self.getattr,
            p.Op.READ: self.read,
            p.Op.READDIR: self.readdir,
            p.Op.READDIRPLUS: self.readdirplus,
            p.Op.OPENDIR: self.opendir,
            p.Op.RELEASEDIR: lambda _node, _request, _length: (),
            p.Op.STATFS: self.statfs,
            p.Op.GETXATTR: self.getxattr,
            p.Op.LISTXATTR: self.listxattr,
        }
        # OPEN has no handler in page-cache mode: the reply ENOSYS makes warm reads free. Neither
        # has FLUSH in both modes: a close then sends no message.
        if self._backings is not None:
            table[p.Op.OPEN] = self.open
            table[p.Op.RELEASE] = self.release
        table.update(dict.fromkeys(p.CHANGING_OPS, _read_only))
        return table

    def worker_table(self, *, passthrough: bool) -> dict[int, Handler]:
        """The handlers of a worker: it hands over what only the server may do."""
        table = self.table() | {
            p.Op.READ: self.read_or_hand_over,
            p.Op.GETXATTR: self.getxattr_or_ask,
        }
        if passthrough:
            table |= {p.Op.OPEN: self.ask_server, p.Op.RELEASE: self.ask_server}
        return table

    def ask_server(self, _ino: int, request: Request, length: int) -> Reply:
        peers, copy = self._peers, bytearray(request[:length])
        assert peers is not None
        if peers.hand_to_server(copy, length):
            return NO_REPLY
        # The server does not read at the moment: wait in another thread, so that later requests
        # need not.
        return BlockingReply(lambda: peers.wait_for_server(copy, length))

    def getxattr_or_ask(self, ino: int, request: Request, length: int) -> Reply:
        _known_attribute(request, length)  # `ls -l` asks for attributes that no file has
        return self.ask_server(ino, request, length)

    # -- the connection -----------------------------------------------------------------

    def init(self, _node: int, request: Request, length: int) -> Reply:
        major, minor, offered_readahead, flags = p.INIT_IN.unpack_from(request, p.IN_HEADER_BYTES)
        if major != p.KERNEL_VERSION or minor < 31:
            raise FuseError(errno.EPROTO)
        offered = p.Init(flags)
        extended = bool(flags & p.Init.INIT_EXT)
        if extended and length >= p.IN_HEADER_BYTES + p.INIT_IN.size + 4:
            at = p.IN_HEADER_BYTES + p.INIT_IN.size
            offered |= p.Init(int.from_bytes(request[at : at + 4], "little") << 32)
        wanted = (
            p.Init.ASYNC_READ
            | p.Init.PARALLEL_DIROPS
            | p.Init.MAX_PAGES
            | p.Init.DO_READDIRPLUS
            | p.Init.BIG_WRITES
            | p.Init.INIT_EXT
        )
        if self._options.resend:
            wanted |= p.Init.HAS_RESEND
        if self._backings is not None:
            wanted |= p.Init.PASSTHROUGH
        else:
            wanted |= p.Init.NO_OPEN_SUPPORT
        if self._options.cache_listings:
            wanted |= p.Init.NO_OPENDIR_SUPPORT
        agreed = int(wanted & offered)
        depth = self._options.stack_depth if agreed & p.Init.PASSTHROUGH else 0
        pages = max(1, self._options.max_read_bytes // _PAGE)
        # The kernel takes the minimum of this value and the mount's current one when the reply
        # arrives. The server may have raised that by then, and the kernel's own offer would lower
        # it again.
        max_readahead = max(offered_readahead, READAHEAD_KB * KIB)
        self._on_init(p.Init(agreed))
        reply = p.INIT_OUT.pack(
            p.KERNEL_VERSION,
            min(minor, p.KERNEL_MINOR),
            max_readahead,
            agreed & 0xFFFFFFFF,
            _MAX_BACKGROUND,
            _MAX_BACKGROUND * 3 // 4,
            _PAGE,
            1,
            pages,
            0,
            agreed >> 32,
            depth,
            0,
        )
        return (reply,)

    def statfs(self, _node: int, _request: Request, _length: int) -> Reply:
        files, size = self._files.totals()
        blocks = -(-size // _PAGE)
        return (p.STATFS.pack(blocks, 0, 0, files, 0, _PAGE, _NAME_MAX, _PAGE, 0),)

    # -- names and attributes -------------------------------------------------------------

    def lookup(self, parent: int, request: Request, length: int) -> Reply:
        name = bytes(request[p.IN_HEADER_BYTES : length - 1])
        if len(name) > _NAME_MAX:  # the kernel itself refuses only names of more than 1,024 bytes
            raise FuseError(errno.ENAMETOOLONG)
        node = self._files.lookup(parent, name)
        if node is None:
            return (self._no_entry,)
        return (self._entry(node),)

    def getattr(self, ino: int, _request: Request, _length: int) -> Reply:
        seconds, nanos = self._attr_valid
        return (p.ATTR_OUT.pack(seconds, nanos, 0) + self._attr(self._files.node(ino)),)

    def _entry(self, node: Node) -> bytes:
        entry_s, entry_ns = self._entry_valid
        attr_s, attr_ns = self._attr_valid
        head = p.ENTRY.pack(node.ino, 0, entry_s, attr_s, entry_ns, attr_ns)
        return head + self._attr(node)

    def _attr(self, node: Node) -> bytes:
        options = self._options
        seconds, nanos = divmod(node.mtime_ns, 1_000_000_000)
        size = node.size_bytes
        if size is None:
            mode, size = stat.S_IFDIR | options.dir_mode, 0
        else:
            mode = stat.S_IFREG | options.file_mode
        return p.ATTR.pack(
            node.ino,
            size,
            -(-size // _BLOCK),
            seconds,
            seconds,
            seconds,
            nanos,
            nanos,
            nanos,
            mode,
            _LINKS,
            options.uid,
            options.gid,
            0,
            _PAGE,
            0,
        )

    # -- directories ----------------------------------------------------------------------

    def opendir(self, _ino: int, _request: Request, _length: int) -> Reply:
        if self._options.cache_listings:
            # the kernel then caches listings too, and opens directories without a message
            raise FuseError(errno.ENOSYS)
        return (p.OPEN_OUT.pack(0, 0, 0),)

    def readdir(self, ino: int, request: Request, _length: int) -> Reply:
        return self._list(ino, request, plus=False)

    def readdirplus(self, ino: int, request: Request, _length: int) -> Reply:
        return self._list(ino, request, plus=True)

    def _list(self, ino: int, request: Request, *, plus: bool) -> Reply:
        _, after, size = p.READ_IN.unpack_from(request, p.IN_HEADER_BYTES)
        parts: list[bytes] = []
        for entry in self._entries(ino, after, size, plus=plus):
            size -= len(entry)
            if size < 0:
                break
            parts.append(entry)
        return (b"".join(parts),)

    def _entries(self, ino: int, after: int, size: int, *, plus: bool) -> Iterator[bytes]:
        """Yield the entries behind the place `after`: more than a reply of `size` bytes holds, or
        all of them.

        The kernel drops no page for a listing without entries, so that a file that came later was
        not seen (6.18). `.` and `..` make every listing one that has some.
        """
        without_node = bytes(p.ENTRY.size + p.ATTR.size) if plus else b""  # the kernel knows both
        if after == 0:
            yield without_node + _entry_of(ino, _BEHIND_DOT, b".", p.DT_DIR)
        if after in (0, _BEHIND_DOT):
            parent = ROOT if ino == ROOT else self._files.node(ino).parent
            yield without_node + _entry_of(parent, ROOT, b"..", p.DT_DIR)
            after = 0
        smallest = p.DIRENT.size + 8 + len(without_node)
        for node in self._files.children(ino, after, size // smallest + 1):
            kind = p.DT_DIR if node.is_directory else p.DT_REG
            entry = _entry_of(node.ino, node.ino, node.name, kind)
            yield self._entry(node) + entry if plus else entry

    # -- files ----------------------------------------------------------------------------

    def read(self, ino: int, request: Request, _length: int) -> Reply:
        _, offset, size = p.READ_IN.unpack_from(request, p.IN_HEADER_BYTES)
        ready = self._files.read_now(ino, offset, size)
        if ready is None:
            return self._fetch(ino, offset, size)
        return ready

    def read_or_hand_over(self, ino: int, request: Request, length: int) -> Reply:
        """Answer cached bytes in any worker; hand a fetch over to the worker that owns the
        block."""
        _, offset, size = p.READ_IN.unpack_from(request, p.IN_HEADER_BYTES)
        ready = self._files.read_now(ino, offset, size)
        if ready is not None:
            return ready
        peers = self._peers
        assert peers is not None
        obj, number = self._files.block_at(ino, offset)
        target = peers.holder_of(obj)
        # The kernel requests a page once. So another worker can fetch the same block at the same
        # time only if it is also prefetched, or read in parts.
        if target is None and (peers.others_prefetch or offset or size < obj.size_bytes):
            target = peers.owner_of(obj, number)
        if target not in (None, peers.mine) and peers.forward(target, request, length):
            return NO_REPLY
        return self._fetch(ino, offset, size)

    def _fetch(self, ino: int, offset: int, size: int) -> FetchReply:
        def start(done: SendReply) -> FetchJob | None:
            obj = self._files.file(ino).obj  # first: a job that was created must be run
            job = self._files.read(ino, offset, size, done, return_job=True)
            if job is None or self._peers is None:
                return job
            return self._peers.claim(obj, job)

        return FetchReply(start, self._files.cache.submit)

    def open(self, ino: int, request: Request, _length: int) -> Reply:
        flags = int.from_bytes(request[p.IN_HEADER_BYTES : p.IN_HEADER_BYTES + 4], "little")
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise FuseError(errno.EROFS)
        backings = self._backings
        assert backings is not None
        self._files.file(ino)  # here, where the request can be parked if the catalog is damaged
        # The first open of a file reads all of it, to verify it.
        return BlockingReply(lambda: (p.OPEN_OUT.pack(*backings.open(ino)),))

    def release(self, ino: int, request: Request, _length: int) -> Reply:
        (handle,) = p.RELEASE_IN.unpack_from(request, p.IN_HEADER_BYTES)
        assert self._backings is not None
        self._backings.release(ino, handle, resent=p.is_resent(request))
        return ()

    # -- extended attributes ----------------------------------------------------------------

    def getxattr(self, ino: int, request: Request, length: int) -> Reply:
        (size, _) = p.GETXATTR_IN.unpack_from(request, p.IN_HEADER_BYTES)
        name = _known_attribute(request, length)
        node = self._files.node(ino)
        if node.is_directory:
            raise FuseError(errno.ENODATA)
        if name == _XATTR_VERSION:
            value = (node.version or "").encode()
        else:
            value = str(self._files.cached_bytes(ino)).encode()
        return _xattr_reply(value, size)

    def listxattr(self, ino: int, request: Request, _length: int) -> Reply:
        (size, _) = p.GETXATTR_IN.unpack_from(request, p.IN_HEADER_BYTES)
        names = (_XATTR_VERSION, _XATTR_CACHED)
        if self._files.node(ino).is_directory:
            names = ()
        return _xattr_reply(b"".join(name + b"\0" for name in names), size)


def _no_reply(_node: int, _request: Request, _length: int) -> Reply:
    return NO_REPLY  # nodes are in the catalog; there is nothing to release


def _read_only(_node: int, _request: Request, _length: int) -> Reply:
    raise FuseError(errno.EROFS)


def _entry_of(ino: int, place: int, name: bytes, kind: int) -> bytes:
    entry = p.DIRENT.pack(ino, place, len(name), kind) + name
    return entry + bytes(-len(entry) % 8)


def _known_attribute(request: Request, length: int) -> bytes:
    """Return the name that is asked for. Raises ENODATA for one that no file has, without a look
    into the catalog: `ls -l` of 50,000 files asks 100,000 times."""
    name = bytes(request[p.IN_HEADER_BYTES + p.GETXATTR_IN.size : length - 1])
    if name not in (_XATTR_VERSION, _XATTR_CACHED):
        raise FuseError(errno.ENODATA)
    return name


def _xattr_reply(value: bytes, size: int) -> Reply:
    if size == 0:
        return (len(value).to_bytes(4, "little") + bytes(4),)
    if len(value) > size:
        raise FuseError(errno.ERANGE)
    return (value,)


def _split_timeout(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 1_000_000_000)
