"""Find what is wrong, slow or stuck on this machine, and say in plain words what to do.

    facts/       look: each look has a deadline, and none touches a mount, whose server may be dead
    rules/       judge the facts; pure
    examination  both, for one resource or for all; the report as text and JSON
    bundle       a support bundle; redactor removes the secrets from it

Charter: nothing here changes anything.
"""
