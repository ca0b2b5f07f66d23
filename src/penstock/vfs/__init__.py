"""What the file system looks like: inodes, reads, readahead, invalidation.

Charter: knows names, nodes and byte ranges; knows nothing of FUSE, so that another protocol
can serve the same tree. Any thread may call anything.
"""
