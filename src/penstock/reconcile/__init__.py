"""Declared resources, made real on this machine: what is wanted, what is there, and the loop that
brings the one to the other.

Charter: wanted and observed are kept apart, in one SQLite file. Whoever wants something writes it
down; one process at a time, the loop, acts. It may be killed at any moment, and what it had begun
is found again by looking, not by remembering.
"""
