"""From declared resources to the settings of a mount.

Charter: pure. Whatever must be looked up (secrets, other data sets, what is a tmpfs) is handed in
as a function. Nothing that a person wrote is dropped in silence: each word becomes a setting, or is
told as having no effect, with the reason, or is refused.
"""
