"""Arbitrary bytes for everything that parses what others wrote.

A target (`target.py`) is a function that takes any bytes, raises nothing and returns soon. What
our code may raise there is caught inside of it; everything else is a finding: another exception, a
bug that was logged, a thread that died, a wrong answer, a hang, too much memory.

    python -m tests.fuzz                              every target, 60 seconds each; as many at a
                                                      time as there are cores (--jobs N)
    python -m tests.fuzz requests yaml --seconds 600  these two
    python -m tests.fuzz requests --input FILE        one input again, with its traceback

Inputs that were findings once lie in `regressions/TARGET/` and are run by the normal suite, which
also gives each target a few hundred seeded mutations (`test_targets.py`).
"""
