"""The processes behind a mount: supervisor, server and workers, and how to reach them.

The one place where the parts below are put together. Nothing below knows of processes; above are
only the command line and what keeps declared resources.

    mount_lifecycle   start, change and end a mount (what commands call)
    mount_registry    which mounts there are on this machine, and which are being made
    control_socket    requests to a running mount, one JSON line each
    channel           messages between supervisor, server and workers

    supervisor        holds /dev/fuse, starts servers and replaces them
    server_process    one server as its supervisor sees it
    refuse            answers readers with EIO while no server can be started

    serve             main of the server process
    server            wires catalog, cache, file system and FUSE session, and serves
    catalog_refresher lists the sources again, repairs the catalog, tells the kernel what changed
    epoch_plans       plans that training processes hand over
    warm_requests     `penstock warm` in the server; warm_client is the caller's side
    mount_stats       what `penstock stats` shows; mount_metrics: what a monitoring system asks for
    metrics_endpoint  main of the process that answers at --metrics; metrics_process: how its
                      supervisor sees it; exposition: the format of Prometheus
    resource_limits   memory and descriptors of a server

    worker_pool       the workers as their server sees them
    worker            main of a worker process
    fork_server       a single-threaded process that forks workers
    process_setup     what server and workers set up alike
    log_file          the log that all these processes write to
"""
