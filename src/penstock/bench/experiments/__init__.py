"""One experiment: one system, one workload, one network, measured in a process of its own.

python -Pm penstock.bench.experiments CONFIG.json

running      one experiment                       read_epochs  an arm read cold, cached and warm
feeding      the program that trains              loading      the same behind a DataLoader
programs     gated programs, real training jobs   storeline    the line to the store, counted
proofs       is it cold, is it warm, was it all   result_files what an experiment writes

Workloads that read no data are in __main__.
"""
