"""What Python programs and the command line call: `import penstock` exports its main names.

    resources  create, list, describe, load and delete what manifests declare
    manifests  read and check manifests before they are applied; explain their fields
    jobs       training jobs: submit, wait, logs, attach, usage
    logs       what jobs, operations and mounts print; log_parts: a part of a job's, for a page
    mounts     the mounts of this machine: statistics, refresh, warm, upgrade, unmount
    caches     the contents of a cache directory: list, verify, clear
    machine    this machine: labels, diagnosis, the reconcile loop as a service
    node       the node plugin of a cluster
    shared     members of shared tiers that run on this machine
    planning   predict epochs and traffic before a training runs
    tables     resources as text, in the columns of kubectl

Each function raises `penstock.errors.PenstockError`, with a `hint`, where the command would print
an error, and changes the same state as the command, so both can be used at once. The command line
imports nothing below this package. Each module imports no more than its functions need: `penstock
stats` loads neither models nor stores. Threading: any thread.
"""
