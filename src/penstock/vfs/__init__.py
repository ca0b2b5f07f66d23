"""The file system itself: inodes, reads, readahead, invalidation.

Charter: knows names, nodes and byte ranges; knows nothing of FUSE, so that another protocol can
serve the same tree. Threading: any thread.
"""
