"""A soak: readers, kills, upstream changes, store faults and cache damage, all at once.

What each file may hold at any moment is a function of its name and the number of its state, so a
reader can judge whether what it got is one version, whole, and whether it is one that may still be
seen (`contents`). Everything random comes from one printed seed.
"""
