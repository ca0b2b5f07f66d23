"""The local cache: tiers of directories, checked bytes, one fetch for many waiters.

Charter: bytes of (source, key, version) in, the same bytes out, or a miss; never wrong bytes,
and never an error for a reader because a cache failed. Knows nothing of files or the kernel.

What lies on disk, in each directory of each tier:

    users.lock            held by every process that uses the directory
    index.lock            held while the index is opened (shared) or replaced (alone)
    index.sqlite          which blocks of which objects are here, with their checksums
    objects/ab/abcd…      one plain file for each object; sparse while blocks are missing

A block is in the cache once its row is in the index; an object of one block can be read as soon as
its file carries its sums (an extended attribute, where the file system has them). Bytes are written
before both, so a process that dies in between leaves nothing that is believed; a machine that dies
may leave a row without its bytes, which the checksum finds. Two processes that fill the same block
write the same bytes to the same place, so they need no lock.

Who knows what of failures: `integrity` and `files` find a bad file, and `directory` drops it;
`indexfile` finds a bad index and makes it anew; `guarded` takes a directory that fails out, and
lets it in again; `sweep` removes what the dead have left. Nothing of it is raised to a reader.

Locks, in the order in which they may be taken (never the other way round):

    a delivery's own   which blocks of a read are here    held for list access only
    Fetches._lock      who fetches, and waits for, what   held for dictionary access only
    Guarded._lock      is the directory in or out         held for a few assignments
    _drop_lock         of a directory: what is wrong      held while a block is checked and dropped
    _room_lock         of a directory: what is reserved   held while room is made
    index.lock         between processes                  held while a connection is opened
    Index._flushing    who writes the rows that wait      held for one batch
    Index._usage_lock  how many bytes are noted           held for one batch
    Index._lock        rows waiting to be written         held for list access only
    SQLite's own       between processes                  held for one batch

Callbacks (the answers to readers) run with none of them held.
"""
