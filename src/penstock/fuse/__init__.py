"""The kernel's side: the FUSE protocol on /dev/fuse, spoken directly.

Charter: turns requests into calls of the vfs and answers into bytes; decides what the kernel
may keep. Knows nothing of stores and caches.

Two modes, since the first excludes the second for a whole connection:

pagecache      OPEN is answered with ENOSYS. From then on the kernel opens and closes files by
               itself and keeps their pages: a warm open, read, close sends no message at all.
passthrough    OPEN is answered with a file of the local cache, if it is complete: the kernel
               reads that file by itself, without a copy and without a second cache.
"""
