"""The kernel's side: the FUSE protocol on /dev/fuse, without libfuse.

Charter: turns requests into calls of the vfs and results into replies; decides what the kernel may
cache. Knows nothing of stores and caches.

    session     receives requests, calls handlers, writes replies; handlers: one method per opcode
    protocol    the kernel's structs; errno_table: our errors as errno
    peers       the processes that serve one mount; journal: what the next server must know
    backing     passthrough files; mounting: mount and unmount; holders: processes that use a mount

Two modes, since the first excludes the second for a whole connection:

    pagecache     OPEN is answered with ENOSYS. From then on the kernel opens and closes files by
                  itself and keeps their pages: a warm open, read, close sends no message at all.
    passthrough   OPEN is answered with a file of the local cache, if it is complete: the kernel
                  reads that file by itself, without a copy and without a second cache.
"""
