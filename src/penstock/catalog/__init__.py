"""A data set's names, sizes, versions and tree, kept in SQLite.

Charter: answers lookups from disk in microseconds with little memory, and takes in a whole new
listing at once. Knows nothing of bytes, caches or the kernel.

    tree          queries: inodes, names, changes
    database      connections, transactions, checkpoints, repair; page_sums reveals damage,
                  salvage saves the undamaged rows
    schema        the tables; sources the rows of each store
    refresh       takes in new listings: listing lists a store in parallel, staging collects the
                  entries in scratch tables, merge applies them; names says which keys can be files
    file_set      files of a tree, put in order
"""
