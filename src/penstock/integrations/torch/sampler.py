"""A sampler that publishes its order to the mount in advance, and can be resumed in mid-epoch.

The order of an epoch is a function of the seed, the epoch, and the wrapped sampler as it is when
the epoch begins: it is drawn from a copy, whose generators are seeded by seed and epoch. So it is
the same in every run, and with any number of workers.

Threading: one thread at a time, as for any sampler. A plan belongs to the process that iterates;
forked workers and pickled copies have none.
"""

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os import PathLike, fspath, getpid
from typing import Any

from penstock.errors import PenstockError, PlanError
from penstock.integrations.dataset_files import NoFiles, files_of
from penstock.integrations.forecast import (
    add_indices,
    derive_seed,
    preserve_random_states,
    sampler_with_epochs,
    seed_all,
)
from penstock.integrations.publisher import Publisher
from penstock.integrations.sampler_copy import isolated_copy
from penstock.integrations.torch.datasets import Sampler

log = logging.getLogger(__name__)

# A loader does not tell its sampler how many samples its workers hold and have not read yet.
# Sixteen workers with two batches of 512 each are this many. Further behind the cursor nothing is
# fetched any more, and pages may be dropped.
_USUAL_LAG = 16_384
_MOST_DRAWN = (
    10_000_000  # an epoch longer than this, and than 20 times the files, counts as endless
)


class PlannedSampler(Sampler[Any]):
    """Wraps any sampler or batch sampler, DistributedSampler included, and publishes its order.

    sampler  the wrapped sampler; it is never iterated itself
    dataset  the data set that the indices refer to; by default, that of the sampler
    paths    the file of each index, if they cannot be found in the data set
    seed     decides the order, together with the epoch
    lag      how many samples the loader's workers may hold and have not read:
             workers * prefetch_factor * batch size, or more

    An epoch begins with the first draw from an `iter()`: the epoch of `set_epoch`, or the one after
    the last. An iterator that is never drawn from does not count: loaders make such iterators.

    The next order is published as soon as it is known: here, by `set_epoch`, and by
    `load_state_dict`. A loader first starts its workers, which takes 0.1 to 0.5 s.
    """

    publishes_its_order = True  # so that `penstock run` does not do it again

    def __init__(
        self,
        sampler: Any,
        dataset: Any = None,
        *,
        paths: Sequence[str | PathLike[str]] | None = None,
        seed: int = 0,
        lag: int = _USUAL_LAG,
    ) -> None:
        self.sampler = sampler
        self.seed = seed
        self.lag = lag
        self._files = _files_behind(sampler, dataset, paths)
        self._epoch = 0  # the last epoch that has begun
        self._position = 0  # how much of it was handed out, in samples or batches
        self._next = (0, 0)  # epoch and position where the next one begins
        self._resuming = False  # `_next` comes from a loaded state
        self._epoch_is_set = False  # `_next` comes from set_epoch
        self._idle = True  # nothing was drawn since the last iter(), or ever
        self._iter_called = False  # iter() was called and nothing drawn since
        self._ended_epoch: int | None = None  # the next iter() is the empty rest of this epoch
        self._runs = 0  # how many epochs have begun: only the last one moves the cursor
        self._orders: dict[int, list[Any]] = {}
        self._publisher: Publisher | None = None
        self._plan_failed = False
        self._published: tuple[int, int] | None = (
            None  # epoch and position of what is published ahead
        )
        self._publish_next()

    def __iter__(self) -> Iterator[Any]:
        self._idle = self._iter_called = True
        if self._ended_epoch is not None:
            self._next, self._resuming, self._ended_epoch = (self._ended_epoch + 1, 0), False, None
            return iter(())
        return _Epoch(self)

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iter() this epoch, from its beginning, or from where a loaded state was."""
        if not (self._resuming and self._next[0] == epoch):
            self._next, self._resuming = (epoch, 0), False
        self._epoch_is_set = True
        self._publish_next()

    def state_dict(self, *, done: int | None = None) -> dict[str, int]:
        """Return the position in this epoch. `done`: how many samples (or batches) of it the script
        has used; by default how many were handed out, which with workers is more.
        StatefulDataLoader corrects this by itself."""
        epoch, position = self._next if self._idle else (self._epoch, self._position)
        return {
            "epoch": epoch,
            "position": position if done is None else done,
            "seed": self.seed,
            "length": len(self._order(epoch)),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue in the next iter() where this state was; raise PlanError if it does not fit."""
        try:
            epoch, position = state["epoch"], state["position"]
            seed, length = state["seed"], state["length"]
        except (KeyError, TypeError) as error:
            raise PlanError(
                "this is not the state of a PlannedSampler",
                hint="pass what its state_dict() gave",
            ) from error
        before, self.seed = self.seed, seed
        self._orders.clear()
        here = len(self._order(epoch))
        if here != length or not 0 <= position <= length:
            self.seed = before
            self._orders.clear()
            raise PlanError(
                f"this state is at {position:,} of {length:,} in an epoch, "
                f"but epochs of this sampler have {here:,}",
                hint="resume with the data set, batch size and number of ranks it was saved with",
            )
        self._next, self._resuming, self._epoch_is_set = (epoch, position), True, False
        self._idle = True
        # StatefulDataLoader loads the state of a finished epoch between two iter(): the second is
        # the rest of that epoch, even if it is never drawn from, and only a third is the next.
        self._ended_epoch = epoch if self._iter_called and position == length else None
        self._published = None  # another seed gives another order
        self._publish_next()

    def close(self) -> None:
        """End the plan, as the end of the process does; a later epoch opens a new one."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = self._published = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publisher": None, "_orders": {}, "_published": None}

    # -- for the iterator of an epoch --------------------------------------------------------

    def begin(self) -> tuple[int, int, int, list[Any]]:
        """Begin the next epoch and publish it; return its run, number, start position and order."""
        # Drawn again even if announced: the wrapped sampler may have changed since.
        epoch, position, order = self._next_run(self._draw)
        self._orders = {epoch: order}
        self._epoch, self._position = epoch, position
        self._next, self._resuming, self._epoch_is_set = (epoch + 1, 0), False, False
        self._idle = self._iter_called = False
        self._runs += 1
        self._published = None
        publisher = self._open()
        if publisher is not None:
            publisher.begin([_flat(order[position:])])
        return self._runs, epoch, position, order

    def announce(self, epoch: int) -> None:
        if self._publisher is not None:
            self._publisher.announce(_flat(self._order(epoch)))
            self._published = epoch, 0

    def hand_out(self, epoch: int, position: int, item: Any) -> None:
        self._position = position
        if self._publisher is not None:
            count = len(_flat((item,)))
            self._publisher.hand_out(count, self.lag + count)
            if (problem := self._publisher.problem()) is not None:
                log.warning("epoch %d: %s", epoch, problem)

    def is_last(self, run: int) -> bool:
        return self._runs == run

    def _next_run(self, draw: Callable[[int], list[Any]]) -> tuple[int, int, list[Any]]:
        """Return the next epoch, the position where it begins, and its order."""
        epoch, position = self._next
        order = draw(epoch)
        if self._resuming and not self._epoch_is_set and position == len(order):
            epoch, position = epoch + 1, 0  # that epoch was finished
            order = draw(epoch)
        return epoch, position, order

    def _publish_next(self) -> None:
        """Publish what comes next, unless that is done, or an epoch is under way, which the script
        may still be reading."""
        publisher = self._open()
        if publisher is None or publisher.under_way or self._published == self._next:
            return
        try:
            epoch, position, order = self._next_run(lambda e: self._orders.get(e) or self._draw(e))
            publisher.publish_next(_flat(order[position:]))
        except Exception as error:  # noqa: BLE001 (of the wrapped sampler)
            # The script gets the same error when it draws.
            log.debug("not published in advance: %r", error)
            return
        self._published = epoch, position

    def _open(self) -> Publisher | None:
        if self._publisher is not None and self._publisher.process != getpid():
            self._publisher = self._published = None  # this is a forked child
        if self._publisher is None and not self._plan_failed:
            try:
                self._publisher = Publisher(self._files)
            except (PenstockError, OSError) as error:
                self._plan_failed = True  # reported once; the order is the same without a plan
                hint = getattr(error, "hint", None)
                log.warning("no plan: %s%s", error, f"; hint: {hint}" if hint else "")
        return self._publisher

    def _order(self, epoch: int) -> list[Any]:
        if epoch not in self._orders:
            self._orders[epoch] = self._draw(epoch)
        return self._orders[epoch]

    def _draw(self, epoch: int) -> list[Any]:
        def renew(generator: Any, number: int) -> object:
            return _seeded(generator, derive_seed(self.seed, epoch, number))

        copied = isolated_copy(self.sampler, renew=renew, share_data=True)
        most = max(20 * len(self._files), _MOST_DRAWN)
        with preserve_random_states():
            seed_all(derive_seed(self.seed, epoch))
            if (counting := sampler_with_epochs(copied)) is not None:
                counting.set_epoch(epoch)
            elif isinstance(getattr(copied, "epoch", None), int):
                copied.epoch = epoch
            order: list[Any] = list(islice(copied, most + 1))
        if len(order) > most:
            raise PlanError(
                f"{type(self.sampler).__name__} has not ended after {most:,}: "
                "an epoch must have an end",
                hint="limit it, or let `penstock run` plan it as it goes",
            )
        return order


class _Epoch(Iterator[Any]):
    """The rest of an epoch. Its order is drawn with the first item."""

    def __init__(self, sampler: PlannedSampler) -> None:
        self._sampler = sampler
        self._run = self._epoch = self._position = 0
        self._order: list[Any] | None = None
        self._announce_at = -1

    def __next__(self) -> Any:
        if self._order is None:
            self._run, self._epoch, self._position, self._order = self._sampler.begin()
            self._announce_at = (self._position + len(self._order)) // 2
        if self._position >= len(self._order):
            raise StopIteration
        item = self._order[self._position]
        self._position += 1
        if self._sampler.is_last(self._run):  # two loops may run over one sampler
            self._sampler.hand_out(self._epoch, self._position, item)
            if self._position == self._announce_at:
                self._sampler.announce(self._epoch + 1)
        return item


def _files_behind(
    sampler: Any, dataset: Any, paths: Sequence[str | PathLike[str]] | None
) -> list[str]:
    if paths is not None:
        return [fspath(path) for path in paths]
    below = sampler
    while dataset is None and below is not None:
        dataset = getattr(below, "data_source", getattr(below, "dataset", None))
        below = getattr(below, "sampler", None)
    hint = "PlannedSampler(sampler, paths=[...]) takes the file of each index"
    if dataset is None:
        raise NoFiles(f"{type(sampler).__name__} does not tell what it samples from", hint=hint)
    try:
        return files_of(dataset)
    except NoFiles as error:
        raise NoFiles(str(error), hint=hint) from error


def _flat(order: Sequence[Any]) -> "array[int]":
    flat = array("q")
    try:
        flat.extend(order)  # a sampler; a million in 20 ms
    except TypeError:
        flat = array("q")
        for item in order:  # a batch sampler
            add_indices(flat, item)
    return flat


def _seeded(generator: Any, seed: int) -> object:
    kind: Any = generator.__class__
    if hasattr(generator, "manual_seed"):  # torch's
        return kind(device=generator.device).manual_seed(seed)
    if hasattr(generator, "bit_generator"):  # numpy's
        return kind(type(generator.bit_generator)(seed))
    return kind(seed % 2**32)  # Python's, and numpy's former one
