"""The operator: Datasets and runtimes to volumes, DaemonSets, node labels and statuses.

    main         the process: leader election, caches, workers, signals
    objects      what is kept of each object of the cluster; pure
    view         the caches, what they say together, and which work a change makes
    queue        keys to work on: each once, one worker at a time, with backoff
    reconciler   one data set: the actions for each state of `reconcile.dataset_phases`
    writer       requests that change the cluster, and what they changed until the caches have it
    references   data sets that only show another one; pure
    nodes        labels of nodes: where servers run
    servers      asks server pods for their status
    provision    data sets for claims of a StorageClass of ours

It reads no Secret and mounts nothing. Everything is level-triggered: a key in the queue says only
that something about a data set, node or claim may have changed, and each step may be repeated.
Threads: one for each cache, some workers, one that asks servers. Locks are held for the length of a
dict access, never during a request.
"""
