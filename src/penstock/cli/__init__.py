"""The command line: one module for each command, and nothing that another program could need.

Data goes to stdout, talk to stderr. Exit 0 done, 1 a bug of ours, 2 a mistake of the user's,
3 storage unreachable.
"""
