"""The command line: `app` lists the commands and the module of each. Calls `penstock.api` only.

Data goes to stdout, messages to stderr (`output`). Exit 0 done, 1 a bug of ours, 2 a mistake of the
user's, 3 storage unreachable, 4 a training job failed.
"""
