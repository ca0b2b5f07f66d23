"""What tests share: servers, mounts, data sets, jobs, faults, and one way to wait.

Test modules import from here and from Penstock, never from each other or from a conftest.
"""
