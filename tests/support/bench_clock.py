"""A clock for the emulated accelerator."""


class Clock:
    """Time passes only by steps and by what the loader takes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
