"""The local cache: tiers of directories, checked bytes, one fetch for many waiters.

Charter: bytes of (source, key, version) in, the same bytes out, or a miss; never wrong bytes,
and never an error for a reader because a cache failed. Knows nothing of files or the kernel.

What lies on disk, in each directory of each tier:

    index.sqlite          which blocks of which objects are here, with their checksums
    objects/ab/abcd…      one plain file for each object; sparse while blocks are missing

A block is in the cache once its row is in the index. Bytes are written before the row, so a
process that dies in between leaves nothing that is believed; a machine that dies may leave a
row without its bytes, which the checksum finds. Two processes that fill the same block write
the same bytes to the same place, so they need no lock.

Locks, in the order in which they may be taken (never the other way round):

    a delivery's own   which blocks of a read are here    held for list access only
    Flights._lock      who is fetching which block        held for dictionary access only
    Flight._lock       who waits for a block              held for list access only, alone
    Index._lock        rows waiting to be written         held for list access only
    SQLite's own       between processes                  held for one batch

Callbacks (the answers to readers) run with none of them held.
"""
