"""Resources as people write them: Dataset, runtimes, data operations, Secret.

Charter: YAML to models and back; names, types, explanations. Knows nothing of mounts, stores or
state, and does no I/O.
"""
