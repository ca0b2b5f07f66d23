"""Penstock on a real Kubernetes: two nodes, each a kubelet and a containerd, on this machine.

`python -m tests.cluster COMMAND...` starts the cluster, runs the command in it, and stops it. One
cluster serves all tests, in any number of pytest's processes; each test has a namespace of its own.
"""
