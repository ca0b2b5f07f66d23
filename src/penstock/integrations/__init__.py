"""Penstock inside a training process: plans, samplers, data sets, file systems.

    torch/            PlannedSampler, PenstockImageFolder, PenstockFiles
    fsspec            `penstock://` as an fsspec file system
    ordered           reads in an order that the mount knows in advance, for any other loader
    plans             sends a plan to the mounts, and moves its cursor
    publisher         keeps a plan in step with the epochs of one loader
    forecast          predicts the order of a sampler, from a copy of it (sampler_copy)
    loader_hook       the same for every DataLoader of a process: `penstock run` (hook/, quiet_open)
    dataset_files     finds the file behind each index of a data set

Imports the standard library and what the user's script has imported, since user scripts import
this package. Never changes what a script reads, nor in which order; without a plan, the script runs
as it would without Penstock.
"""
