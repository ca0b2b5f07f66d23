"""A data set's names, sizes, versions and tree, kept in SQLite.

Charter: answers lookups from disk in microseconds with little memory, and takes in a whole
new listing at once. Knows nothing of bytes, caches or the kernel.
"""
