"""Fluid's compatibility: a Dataset and its runtime, translated to the settings of one mount.

    plan         the translation: MountPlan has the settings, and what to tell the user
    sources      mountPoint and store options to a source; stores has the tables
    options      a runtime's settings and FUSE arguments to mount options; properties has the tables
    values       conversion of single values
    tiers        tieredstore to cache tiers

Charter: pure, and the same wherever it is driven from. The caller passes functions that look up
secrets, other data sets and files, and the folders of its machine. Nothing that a user writes is
dropped silently: each option becomes a setting, is reported as having no effect, or is refused.
"""
