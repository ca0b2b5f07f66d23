"""The server pod of a data set: the daemon of one machine, around a mount of the node plugin.

    main         starts the others, answers /readyz, /status, /metrics; has no settings and no keys
    settings     Dataset, runtime and Secrets to mount settings; a process that ends at once
    supervise    the supervisor of `daemon`, with the keeper's mount

Charter: no privilege, no right at the API server, no path of the node but those of its volumes.
"""
