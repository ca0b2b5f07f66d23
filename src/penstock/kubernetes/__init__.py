"""Penstock on Kubernetes: the operator, the node plugin and the server pods. See ADR 15.

    names        groups, labels, paths, ports: what all roles agree on; pure
    client       the API server, over urllib3; watch keeps caches of what it has
    crds         CustomResourceDefinitions from the models of specs; pure
    operator/    Datasets and runtimes to volumes, DaemonSets and statuses; mounts nothing
    node/        CSI, mounts, descriptors and folders of one node; knows no store and no Secret
    pod/         the entry of a server pod: settings from its environment, then the usual daemon

Charter: specs, fluid and the state machine of `reconcile` are used as they are on one machine. The
three roles share `names` and nothing else at run time; none imports another.
"""
