"""The benchmark of the shared tier: several nodes on this machine, with links between them.

    python -m penstock.bench.shared [--set NAME=VALUE …]

A program beside `penstock bench`, whose plans describe one system on one machine at a time: here
several mounts read at once, and the servers behind them fail while they do.

    network     machines: network namespaces, links, their rate, a partition
    servers     memcached on a machine, and everything that can happen to it
    cluster     the machines, the store behind its latency, the members, the mounts
    bareclient  the same values by a plain memcached client
    watching    readers that check each byte, and time each read
    failing     members that fail under such readers
    measuring   the other rows, one function for each group
    report      the table, as Markdown and as JSON
"""
