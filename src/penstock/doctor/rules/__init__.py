"""Judge facts: from what was seen to findings. Pure: no I/O, no clock; all numbers are facts."""
