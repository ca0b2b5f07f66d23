"""Declared resources, made real on this machine by one loop.

    declare     manifests, admission (apply), deletion, waiting (for the result)
    store       state: desired and observed state, apart from each other, in one SQLite file
    decide      snapshot, conditions, dataset_phases: pure; know no file, process or mount
    act         loop (one process per state folder), loop_control (starts and wakes it), datasets,
                mount_plan, node_affinity, cleanup
    show        live_status: what was observed, with the mounts' own counts of this moment
    run         resource_process, command_environment, mount_namespace: processes for operations
                and jobs

A client that wants something writes it to the state; only the loop acts. The loop may be killed at
any moment: the next one finds unfinished work by looking at the machine, not by remembering.
"""
