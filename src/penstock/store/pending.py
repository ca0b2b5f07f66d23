"""A pending object as a store that wraps another hands it on."""

from collections.abc import Callable

from typing_extensions import Buffer

from penstock.store import Pending


class WrappedPending:
    """See Pending. `check` gets the bytes before the caller does, and may raise; `retry` replaces
    that of the inner one."""

    def __init__(
        self,
        pending: Pending,
        *,
        check: Callable[[Buffer], None] | None = None,
        retry: Callable[[Exception], Buffer] | None = None,
    ) -> None:
        self.fileno = pending.fileno
        self.advance = pending.advance
        self.retry = retry or pending.retry
        self._result = pending.result
        self._check = check

    def result(self) -> Buffer:
        data = self._result()
        if self._check is not None:
            self._check(data)
        return data
