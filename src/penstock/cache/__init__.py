"""The local cache: tiers of directories, checksummed blocks, one fetch for many readers.

Charter: bytes of (source, key, version) in, the same bytes out, or a miss; never wrong bytes, and
never an error for a reader because a cache failed. It knows nothing of files or the kernel.

    tiered      the cache of a mount: memory, tiers, store
    fetches     blocks in flight (data: fetch; those that just ended: recent); watchdog: deadlines
                and hedges; claims: of workers
    tier        a tier's protocol and options; build opens tiers; striped spreads one over disks
    guarded     takes a failing directory out of service, and probes it until it is back
    directory   one directory: files, index, indexfile, policy (eviction), locks, sweep
    shared_tier the cache of several machines, before the store. members: which memcached has
                what; memcached: one of them; fills: blocks on their way there; seal: values;
                member_stats: what one reports
    worker_tier the same directory as a worker process uses it
    contents    what is cached of many objects; identity: names, blocks, checksums; pool: threads

Files in each directory of each tier:

    users.lock            held by every process that uses the directory
    index.lock            held while the index is opened (shared) or replaced (exclusive)
    index.sqlite          which blocks of which objects are here, with their checksums
    objects/ab/abcd…      one plain file for each object; sparse while blocks are missing

A block is in the cache once its row is in the index. An object of one block can also be read as
soon as its file carries its checksums (in an extended attribute, where the file system has them).
Bytes are written before both, so a process that dies in between leaves nothing that is trusted; a
machine that dies may leave a row without its bytes, which the checksum finds. Two processes that
fill the same block write the same bytes to the same place, so they need no lock.

Failures: `identity` and `files` detect a bad file, and `directory` drops it; `indexfile` detects a
bad index and rebuilds it; `guarded` takes a failing directory out of service and brings it back;
`sweep` removes what killed processes have left. Readers see none of these errors.

Locks, in the order in which they may be taken (never the other way round):

    a delivery's own   which blocks of a read are here    held for list access only
    Fetches._lock      fetches and their waiters          held for dictionary access only
    GuardedDirectory._lock   is the directory in or out   held for a few assignments
    _drop_lock         of a directory: damaged blocks     held while a block is checked and dropped
    _room_lock         of a directory: reserved bytes     held while room is made
    index.lock         between processes                  held while a connection is opened
    Index._flushing    who writes the pending rows        held for one batch
    Index._usage_lock  how many bytes are recorded        held for one batch
    Index._lock        pending rows                       held for list access only
    Fills._changed     blocks for the shared tier     held for list access only
    SQLite's own       between processes                  held for one batch

Callbacks (the answers to readers) run with none of them held.
"""
