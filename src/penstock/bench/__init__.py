"""Benchmark and demo: real data, a real S3 server, and the systems we compare ourselves with.

Nothing here is imported by the rest of the package, and nothing here looks inside it: Penstock
is driven through its command line like every other system, so all are measured alike.

    workspace   one temporary folder, its processes and mounts; nothing survives it
    s3server    a local S3 server, and buckets      seaweedfs    how to start it
    programs    where programs are, and free ports
    shaper      the same store, far away: latency, a bandwidth, counts
    dataset     JPEGs, small files, large files
    readers     an epoch of open, read, close       bareclient   the same bytes by plain GETs
    measure     CPU, memory, page cache             messages     requests counted by the kernel
    arms        one small class per system          juicefs, alluxio  those that take more
    trial       states, samples, neighbours
    report      tables and JSON                     targets      what the design asks for
    peers       the whole comparison                demo         the short one
    train       a training script                   accelerator  what it feeds, emulated
    epochruns   ways to train two epochs            epochreport  their tables and targets
    epoch       the whole epoch benchmark           epochpicture their picture
    gated       a program that waits between epochs
    gpu         a real training on a GPU, fed in several ways

`penstock bench` is made of four rooms, each with the one before it:

    plans       what is to be measured              workflow     the run, from nothing to a report
    experiments one measurement                     reporting    tables and pictures
"""
