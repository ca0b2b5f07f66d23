"""Makes every DataLoader of this process tell the mount what it will read; for `penstock run`.

Just before a loader draws its first index of an epoch, a copy of its sampler is asked for the whole
order (`forecast`), which is published; each index that is then really drawn is compared with it.
A loader with workers draws only once they run, 0.1 to 0.5 s later: a copy is asked before they are
started, and another one at the first index, whether that is still true.
The loader gets what its own sampler gives, always. Where no order can be told in advance, one line
on stderr says why, and the script runs as if we were not there.

Threading: a watch is used by the thread that draws from its loader.
"""

import os
import sys
import weakref
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import ModuleType
from typing import Any

from penstock.errors import PenstockError
from penstock.integrations.dataset_files import files_of
from penstock.integrations.forecast import Forecast, add_indices, counts_epochs
from penstock.integrations.publisher import Publisher
from penstock.integrations.sampler_copy import NoOrder

# What `penstock run` says to the user: one line on stderr, once. Any thread.

_said: set[str] = set()


def say(what: str, hint: str | None = None) -> None:
    """One line on stderr, once; of several ranks on a machine the first speaks for all."""
    line = f"penstock: {what}" + (f"; hint: {hint}" if hint else "")
    if line in _said or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    _said.add(line)
    with suppress(OSError, ValueError):  # a script may have closed it
        print(line, file=sys.stderr, flush=True)


def tell(what: str) -> None:
    """For those who ask for it."""
    if os.environ.get("PENSTOCK_LOG", "").upper() in ("INFO", "DEBUG"):
        say(what)


_FIRST = 4096  # published before the rest is drawn: a million more take 0.2 s
_LEAST_DRAWN = 65_536
_PATIENCE = 2  # wrong forecasts after which a loader is left alone


def install(module: ModuleType) -> None:
    """`module` is torch.utils.data.dataloader. Iterators of torchdata's loaders derive from its."""
    base: Any = module._BaseDataLoaderIter
    if hasattr(base, "_penstock_watch"):
        return
    base._penstock_watch = base._penstock_run = None
    begin, draw = base.__init__, base._next_index

    @wraps(begin)
    def __init__(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        begin(self, loader, *arguments, **options)
        # The loader has drawn the seed of its workers by now, and draws nothing more before them.
        watch = self._penstock_watch = _watch_of(loader)
        if watch is not None and not watch.over and self._num_workers:
            watch.ahead(self)

    @wraps(draw)
    def _next_index(self: Any) -> Any:
        watch: Watch | None = self._penstock_watch
        if watch is None or watch.over:
            return draw(self)
        watch.before(self)
        index = draw(self)  # may raise StopIteration, or whatever the script's sampler raises
        watch.after(self, index)
        return index

    base.__init__, base._next_index = __init__, _next_index


class Watch:
    """What is known of one loader; kept by it and by its iterators, which may outlive it."""

    def __init__(self, loader: Any) -> None:
        dataset = weakref.ref(loader.dataset) if _can_be_weak(loader.dataset) else None
        self._held: list[Publisher] = []  # one at most; its end must not need this object
        weakref.finalize(self, _put_away, self._held, dataset)
        self._name = type(loader.dataset).__name__
        self._generator: Any = loader.generator
        self._seeds_workers = not loader.persistent_workers
        # Batches that workers may have been given and not read, and the one just drawn.
        self._batches_out = loader.num_workers * (loader.prefetch_factor or 0) + 1
        self._latest: object = None  # the run that moves the cursor
        self._largest_batch = 1
        self._epoch: int | None = None
        self._epochs_advance = True
        self._wrong = 0
        self._wrong_ahead = 0
        self.over = False

    def ahead(self, iterator: Any) -> None:
        """Its workers are about to be started. It will make a new iterator of its sampler then."""
        run = _Run(None)
        with self._carefully(f"no plan for {self._name}"):
            try:
                self._begin(run, iterator)
            except NoOrder:
                return  # its iterator may tell more, when it is there
            self._latest, iterator._penstock_run = run.token, run

    def before(self, iterator: Any) -> None:
        """The next index is about to be drawn."""
        run: _Run | None = iterator._penstock_run
        if run is not None and run.iterator is iterator._sampler_iter:
            return
        if run is not None and run.iterator is None:
            with self._carefully(f"no plan for {self._name}"):
                self._confirm(run, iterator)
            return
        iterator._penstock_run = run = _Run(iterator._sampler_iter)
        self._latest = run.token
        with self._carefully(f"no plan for {self._name}"):
            self._begin(run, iterator)

    def after(self, iterator: Any, index: Any) -> None:
        """It was drawn."""
        run: _Run | None = iterator._penstock_run
        if self.over or run is None or run.order is None or run.token is not self._latest:
            return
        with self._carefully(f"the plan for {self._name} ends"):
            self._compare(run, index)

    @contextmanager
    def _carefully(self, what: str) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            self._leave(f"{what}: {error}", error.hint)
        except Exception as error:  # noqa: BLE001 (our bug must not end a training)
            self._leave(f"{what}: {error!r}", "please report this")

    def _begin(self, run: "_Run", iterator: Any) -> None:
        sampler, dataset = iterator._index_sampler, iterator._dataset
        if _is_planned(sampler):
            self.over = True  # it tells the mount by itself
            return
        if _is_iterable(dataset):
            raise NoOrder(
                "only its workers know the order of an IterableDataset",
                hint="readahead still helps; a data set with an index can be planned",
            )
        run.forecast = Forecast(sampler, run.iterator, dataset, self._generator)
        first = run.forecast.draw(_FIRST)
        if not self._held:
            self._held.append(_take_spare(dataset) or Publisher(files_of(dataset)))
        publisher = self._held[0]
        run.most = max(2 * publisher.length, _LEAST_DRAWN)
        guessed = publisher.has_next
        if publisher.begin(run.parts(first)):
            self._wrong_ahead += guessed
        self._learn_epoch(sampler)
        run.refill_at = len(run.order or ()) // 2
        tell(f"{self._name}: {len(run.order or ()):,} samples planned")

    def _confirm(self, run: "_Run", iterator: Any) -> None:
        """Whether what was published ahead begins as the iterator that is there now."""
        run.iterator = iterator._sampler_iter
        sampler, dataset = iterator._index_sampler, iterator._dataset
        forecast = Forecast(sampler, run.iterator, dataset, self._generator)
        first = forecast.draw(_FIRST)
        foretold = run.order or array("q")
        # The whole of it would take as long again, and each index is compared when it is drawn.
        if first == foretold[: len(first)] and (not forecast.ended or len(first) == len(foretold)):
            return
        run.forecast = forecast
        self._held[0].begin(run.parts(first))
        run.refill_at = len(run.order or ()) // 2

    def _learn_epoch(self, sampler: Any) -> None:
        """Whether the script calls set_epoch with a new one each time, as it should."""
        epoch = getattr(counts_epochs(sampler), "epoch", None)
        if self._epoch is not None:
            self._epochs_advance = epoch != self._epoch
        self._epoch = epoch if isinstance(epoch, int) else None

    def _compare(self, run: "_Run", index: Any) -> None:
        assert run.order is not None
        publisher = self._held[0]
        drawn = array("q")
        add_indices(drawn, index)
        if drawn != run.order[run.position : run.position + len(drawn)]:
            self._was_wrong(run, publisher)
            return
        run.position += len(drawn)
        self._largest_batch = max(self._largest_batch, len(drawn))
        publisher.hand_out(len(drawn), self._batches_out * self._largest_batch)
        if run.position >= run.refill_at:
            self._refill(run, publisher)
        if (problem := publisher.problem()) is not None:
            say(f"{self._name}: {problem}")

    def _was_wrong(self, run: "_Run", publisher: Publisher) -> None:
        run.order = None
        publisher.withdraw()
        self._wrong += 1
        hint = "wrapped in penstock.integrations.torch.PlannedSampler it can be"
        if self._wrong < _PATIENCE:
            say(f"the sampler over {self._name} was not foreseen: no plan for now", hint)
        else:
            self._leave(f"the sampler over {self._name} cannot be foreseen: no more plans", hint)

    def _refill(self, run: "_Run", publisher: Publisher) -> None:
        forecast = run.forecast
        assert forecast is not None
        assert run.order is not None
        run.refill_at = sys.maxsize
        if not forecast.ended:  # an endless sampler, or a very long one: planned as it goes
            more = forecast.draw(run.most // 2)
            publisher.extend(more)
            run.order = run.order[run.position :] + more
            run.position, run.refill_at = 0, len(run.order) // 2
        elif self._wrong_ahead < _PATIENCE:
            epoch = self._epoch
            if epoch is not None and self._epochs_advance:
                epoch += 1
            try:
                if not forecast.go_on(epoch=epoch, seeds_workers=self._seeds_workers):
                    return
                following = forecast.draw(run.most)
            except NoOrder:
                return  # this epoch's is known, and that is all
            if following and forecast.ended and not forecast.uses_shared_numbers:
                publisher.announce(following)

    def _leave(self, what: str, hint: str | None) -> None:
        self.over = True
        say(what, hint)
        _close_all(self._held)


class _Run:
    """One epoch of a loader: one iterator of its sampler."""

    def __init__(self, iterator: object) -> None:
        self.iterator = iterator  # None: it is not made yet
        self.token = object()
        self.forecast: Forecast | None = None
        self.order: array[int] | None = None  # as foretold; None: not, or not rightly
        self.position = 0
        self.refill_at = 0
        self.most = _LEAST_DRAWN

    def parts(self, first: "array[int]") -> Iterator["array[int]"]:
        """The order for the publisher, which thus has the first part before the rest is drawn."""
        self.order = array("q", first)
        yield first
        assert self.forecast is not None
        while not self.forecast.ended and len(self.order) < self.most:
            rest = self.forecast.draw(self.most - len(self.order))
            self.order += rest
            yield rest


# -- which loader has which watch, and plans that wait for the next loader ---------------------

_watches: "weakref.WeakKeyDictionary[Any, Watch]" = weakref.WeakKeyDictionary()
_spares: "weakref.WeakKeyDictionary[Any, list[Publisher]]" = weakref.WeakKeyDictionary()


def _watch_of(loader: Any) -> Watch | None:
    try:
        if loader not in _watches:
            _watches[loader] = Watch(loader)
        return _watches[loader]
    except Exception as error:  # noqa: BLE001 (our bug must not end a training)
        say(f"no plan for {type(loader).__name__}: {error!r}", "please report this")
        return None


def _put_away(held: list[Publisher], reference: "weakref.ref[Any] | None") -> None:
    """The loader is gone. Many scripts make one for each epoch: the next one over the same data
    set takes its plan."""
    dataset = reference() if reference is not None else None
    if dataset is None or not held:
        _close_all(held)
        return
    held[0].withdraw()
    if dataset not in _spares:
        _spares[dataset] = []
        weakref.finalize(dataset, _close_all, _spares[dataset])
    _spares[dataset].append(held.pop())


def _take_spare(dataset: Any) -> Publisher | None:
    waiting = _spares.get(dataset) if _can_be_weak(dataset) else None
    return waiting.pop() if waiting else None


def _close_all(publishers: list[Publisher]) -> None:
    while publishers:
        publishers.pop().close()


def _can_be_weak(obj: Any) -> bool:
    return type(obj).__weakrefoffset__ != 0 and type(obj).__hash__ is object.__hash__


def _is_planned(sampler: Any) -> bool:
    for _ in range(8):
        if getattr(sampler, "publishes_its_order", False):  # PlannedSampler
            return True
        sampler = getattr(sampler, "sampler", getattr(sampler, "batch_sampler", None))
    return False


def _is_iterable(dataset: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return isinstance(dataset, torch.utils.data.IterableDataset)
