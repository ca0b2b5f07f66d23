"""One experiment: one system, one workload, one network, measured in a process of its own.

python -Pm penstock.bench.experiments CONFIG.json

models      what MLPerf Storage publishes of the accelerators that are emulated
crc32c      TFRecord's checksum                  pictures    JPEGs of ImageNet's sizes
shards      TFRecords and WebDataset tars        datasets    the data sets, and their hash
reading     one sample after the other           loading     threads that read ahead
feeding     the program that reads: an epoch on several accelerators, or by plain readers
systems     the arms as a plan describes them    proofs      is it cold, is it warm, was it all
running     the order of things                  results     the files that come of it
jobs        a real training job as the reader
"""
