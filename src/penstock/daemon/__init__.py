"""The process behind a mount: wiring, the control socket, the note of what is mounted.

Charter: the one place where parts are put together. Below it nothing knows of processes;
above it is only the command line.
"""
