"""From facts to findings. Pure: no I/O, no clock; every number that is judged is in the facts."""
