"""The benchmark: real data, a real S3 server, and the systems that Penstock is compared with.

Nothing here is imported by the rest of the package, and Penstock is driven through its command line
like every other system, so all are measured in the same way.

    workspace   one temporary folder, its processes and mounts; nothing survives it
    s3server    a local S3 server, and buckets
    shaper      the same store, far away: latency, a bandwidth, counts
    samples     JPEGs, TFRecords, tars              datasets     sets of them, and of plain files
    readers     an epoch of open, read, close       bareclient   the same bytes by plain GETs
    measure     CPU, memory, page cache, FUSE messages
    arms        what is measured: Penstock, native files
    peers       the others, and all by name         alluxio     one of them
    accelerators emulated, as MLPerf Storage publishes them

`penstock bench` is made of four packages, each on top of the one before it; plans/ of the
repository has the plans that `make demo` and `make bench` run:

    plans       what is to be measured              experiments  one measurement
    workflow    the run, from nothing to a report   reporting    tables and pictures
"""
