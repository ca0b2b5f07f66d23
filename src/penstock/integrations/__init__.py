"""Penstock inside a training process: plans, samplers, data sets, file systems.

Charter: light, since it is imported by scripts of others: the standard library, and whatever the
script uses already. Never changes what a script reads, nor in which order; when a plan cannot be
made, the script runs as it would without us.
"""
