"""This machine's members of shared tiers: memcached, started with the right options and kept alive.

    options     what a user asks for, and memcached's command line for it; pure
    lifecycle   start, find and stop a member
    supervisor  the process that starts memcached, and starts it again when it dies

    note        what is recorded of a member

Charter: it runs members, and knows nothing of mounts, caches or data sets. The files of a member:

    STATE/shared/PORT.json       what it is
    STATE/shared/PORT.lock       held by its supervisor
    STATE/logs/shared-PORT.log   what the supervisor and memcached print
"""
