"""A sampler that knows its order in advance, tells the mount, and can be resumed in mid-epoch.

The order of an epoch is a function of the seed, the epoch, and the wrapped sampler as it is when
the epoch begins: a copy of it is asked, whose generators are seeded by seed and epoch. So it is the
same in every run, and with any number of workers.

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
from penstock.integrations.forecast import add_indices, counts_epochs, derive, seed_all, set_aside
from penstock.integrations.publisher import Publisher
from penstock.integrations.sampler_copy import copy_apart
from penstock.integrations.torch.datasets import Sampler

log = logging.getLogger(__name__)

# A loader does not tell its sampler how many samples its workers have been given and have not read
# yet. Sixteen workers with two batches of 512 each are this many. Behind it nothing is fetched any
# more, and pages may be given back.
_USUAL_LAG = 16_384
_MOST_DRAWN = 10_000_000  # an epoch of more than this, and 20 times the files, has no end


class PlannedSampler(Sampler[Any]):
    """Wraps any sampler or batch sampler, DistributedSampler included; hands out what it would.

    sampler  what is wrapped; it is never iterated itself
    dataset  the data set that the indices count into; found behind the sampler if left out
    paths    the file of each index, where the data set does not tell
    seed     together with the epoch decides the order
    lag      how many samples the loader's workers may have been given and not read:
             workers * prefetch_factor * batch size, or more

    An epoch begins with the first draw from an `iter()`: the one that `set_epoch` named, or that
    after the last one. An iterator that is never drawn from does not count: loaders make such.

    The mount is told what comes next as soon as that is known: here, by `set_epoch`, and by
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
        self._epoch = 0  # the last one begun
        self._position = 0  # how much of it was handed out, in batches if those are handed out
        self._next = (0, 0)  # where the next one begins
        self._resuming = False  # it is where a loaded state was
        self._named = False  # set_epoch said which it is
        self._idle = True  # nothing was drawn since the last iter(), or ever
        self._asked = False  # iter() was called and nothing drawn since
        self._over: int | None = None  # the next iter() is the end of this epoch
        self._runs = 0  # how many were begun: the last one moves the cursor
        self._orders: dict[int, list[Any]] = {}
        self._publisher: Publisher | None = None
        self._plan_failed = False
        self._foretold: tuple[int, int] | None = None  # where what was published ahead begins
        self._foretell()

    def __iter__(self) -> Iterator[Any]:
        self._idle = self._asked = True
        if self._over is not None:
            self._next, self._resuming, self._over = (self._over + 1, 0), False, None
            return iter(())
        return _Epoch(self)

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """The next iter() is this epoch, from its beginning; or from where a loaded state was in
        it."""
        if not (self._resuming and self._next[0] == epoch):
            self._next, self._resuming = (epoch, 0), False
        self._named = True
        self._foretell()

    def state_dict(self, *, done: int | None = None) -> dict[str, int]:
        """Where this epoch is. `done`: how many samples (or batches, if those are handed out) of it
        have been used; without it, how many were handed out, which with workers is some more.
        StatefulDataLoader takes care of that by itself."""
        epoch, position = self._next if self._idle else (self._epoch, self._position)
        return {
            "epoch": epoch,
            "position": position if done is None else done,
            "seed": self.seed,
            "length": len(self._order(epoch)),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next epoch goes on where this state was. Raises PlanError if it is another's."""
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
        self._next, self._resuming, self._named = (epoch, position), True, False
        self._idle = True
        # StatefulDataLoader loads the state of an epoch that is over between two iter(): the second
        # is the rest of that epoch, even if it never draws from it, and only a third the next.
        self._over = epoch if self._asked and position == length else None
        self._foretold = None  # with another seed it was another order
        self._foretell()

    def close(self) -> None:
        """Ends the plan; a later epoch makes a new one. The end of the process does it too."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = self._foretold = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publisher": None, "_orders": {}, "_foretold": None}

    # -- for the iterator of an epoch --------------------------------------------------------

    def begin(self) -> tuple[int, int, int, list[Any]]:
        """The next epoch: its number, its order, published from the position where it begins; and
        which run this is."""
        # Drawn again even if it was announced: the wrapped sampler may have been changed since.
        epoch, position, order = self._coming(self._draw)
        self._orders = {epoch: order}
        self._epoch, self._position = epoch, position
        self._next, self._resuming, self._named = (epoch + 1, 0), False, False
        self._idle = self._asked = False
        self._runs += 1
        self._foretold = None
        publisher = self._open()
        if publisher is not None:
            publisher.begin([_flat(order[position:])])
        return self._runs, epoch, position, order

    def announce(self, epoch: int) -> None:
        if self._publisher is not None:
            self._publisher.announce(_flat(self._order(epoch)))
            self._foretold = epoch, 0

    def hand_out(self, epoch: int, position: int, item: Any) -> None:
        self._position = position
        if self._publisher is not None:
            count = len(_flat((item,)))
            self._publisher.hand_out(count, self.lag + count)
            if (problem := self._publisher.problem()) is not None:
                log.warning("epoch %d: %s", epoch, problem)

    def is_last(self, run: int) -> bool:
        return self._runs == run

    def _coming(self, draw: Callable[[int], list[Any]]) -> tuple[int, int, list[Any]]:
        """The epoch that comes next, where in it, and its order."""
        epoch, position = self._next
        order = draw(epoch)
        if self._resuming and not self._named and position == len(order):
            epoch, position = epoch + 1, 0  # that one was over
            order = draw(epoch)
        return epoch, position, order

    def _foretell(self) -> None:
        """Publishes what comes next, unless that was done or an epoch is under way: nobody can
        tell whether that one was left."""
        publisher = self._open()
        if publisher is None or publisher.under_way or self._foretold == self._next:
            return
        try:
            epoch, position, order = self._coming(lambda e: self._orders.get(e) or self._draw(e))
            publisher.foretell(_flat(order[position:]))
        except Exception as error:  # noqa: BLE001 (of the wrapped sampler)
            # Whoever draws meets it again, where he would without us.
            log.debug("not told in advance: %r", error)
            return
        self._foretold = epoch, position

    def _open(self) -> Publisher | None:
        if self._publisher is not None and self._publisher.process != getpid():
            self._publisher = self._foretold = None  # we are a forked child
        if self._publisher is None and not self._plan_failed:
            try:
                self._publisher = Publisher(self._files)
            except (PenstockError, OSError) as error:
                self._plan_failed = True  # told once; the order is the same without a plan
                hint = getattr(error, "hint", None)
                log.warning("no plan: %s%s", error, f"; hint: {hint}" if hint else "")
        return self._publisher

    def _order(self, epoch: int) -> list[Any]:
        if epoch not in self._orders:
            self._orders[epoch] = self._draw(epoch)
        return self._orders[epoch]

    def _draw(self, epoch: int) -> list[Any]:
        def renew(generator: Any, number: int) -> object:
            return _seeded(generator, derive(self.seed, epoch, number))

        copied = copy_apart(self.sampler, renew=renew, share_data=True)
        most = max(20 * len(self._files), _MOST_DRAWN)
        with set_aside():
            seed_all(derive(self.seed, epoch))
            if (counting := counts_epochs(copied)) is not None:
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
    """The rest of an epoch. The order is drawn when it is first asked for."""

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
        flat.extend(order)  # of a sampler; a million in 20 ms
    except TypeError:
        flat = array("q")
        for item in order:  # of a batch sampler
            add_indices(flat, item)
    return flat


def _seeded(generator: Any, seed: int) -> object:
    kind: Any = generator.__class__
    if hasattr(generator, "manual_seed"):  # torch's
        return kind(device=generator.device).manual_seed(seed)
    if hasattr(generator, "bit_generator"):  # numpy's
        return kind(type(generator.bit_generator)(seed))
    return kind(seed % 2**32)  # Python's, and numpy's former one
