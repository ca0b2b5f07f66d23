"""Publishes what every DataLoader of this process will read; for `penstock run`.

Just before a loader draws its first index of an epoch, the whole order is drawn from a copy of its
sampler (`forecast`) and published; each index that is then really drawn is compared with it.
A loader with workers draws only once they run, 0.1 to 0.5 s later: its order is predicted before
they start, and compared with a second prediction at the first index.
The loader always gets what its own sampler gives. If the order cannot be predicted, one line on
stderr says why, and the script runs as without Penstock.

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
from penstock.integrations.forecast import Forecast, add_indices, sampler_with_epochs
from penstock.integrations.publisher import Publisher
from penstock.integrations.sampler_copy import UnpredictableOrder

_printed: set[str] = set()


def warn_once(what: str, hint: str | None = None) -> None:
    """Print a line on stderr, once, and only in the first rank of this machine. Any thread."""
    line = f"penstock: {what}" + (f"; hint: {hint}" if hint else "")
    if line in _printed or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    _printed.add(line)
    with suppress(OSError, ValueError):  # the script may have closed stderr
        print(line, file=sys.stderr, flush=True)


def inform(what: str) -> None:
    """Print a line once, if PENSTOCK_LOG asks for it."""
    if os.environ.get("PENSTOCK_LOG", "").upper() in ("INFO", "DEBUG"):
        warn_once(what)


_FIRST = 4096  # indices published before the rest is drawn: a million more take 0.2 s
_LEAST_DRAWN = 65_536
_MOST_WRONG = 2  # wrong forecasts after which a loader gets no more plans


def install(module: ModuleType) -> None:
    """Hook torch.utils.data.dataloader; torchdata's iterators inherit from those in it."""
    base: Any = module._BaseDataLoaderIter
    if hasattr(base, "_penstock_watch"):
        return
    base._penstock_watch = base._penstock_run = None
    begin, draw = base.__init__, base._next_index

    @wraps(begin)
    def __init__(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        begin(self, loader, *arguments, **options)
        # The loader has drawn the seed of its workers, and draws nothing else before they start.
        watch = self._penstock_watch = _watch_of(loader)
        if watch is not None and not watch.over and self._num_workers:
            watch.before_workers(self)

    @wraps(draw)
    def _next_index(self: Any) -> Any:
        watch: Watch | None = self._penstock_watch
        if watch is None or watch.over:
            return draw(self)
        watch.before_draw(self)
        index = draw(self)  # may raise StopIteration, or an error of the script's sampler
        watch.after_draw(self, index)
        return index

    base.__init__, base._next_index = __init__, _next_index


class Watch:
    """The plan of one loader; held by the loader and by its iterators, which may outlive it."""

    def __init__(self, loader: Any) -> None:
        dataset = weakref.ref(loader.dataset) if _is_weakly_referable(loader.dataset) else None
        self._held: list[
            Publisher
        ] = []  # one at most; a list, since the finalizer must not refer to this object
        weakref.finalize(self, _keep_for_next_loader, self._held, dataset)
        self._name = type(loader.dataset).__name__
        self._generator: Any = loader.generator
        self._seeds_workers = not loader.persistent_workers
        # Batches that workers may hold and have not read, and the one just drawn.
        self._batches_out = loader.num_workers * (loader.prefetch_factor or 0) + 1
        self._latest: object = None  # token of the run that moves the cursor
        self._largest_batch = 1
        self._epoch: int | None = None
        self._epochs_advance = True
        self._wrong = 0
        self._wrong_announcements = 0
        self.over = False

    def before_workers(self, iterator: Any) -> None:
        """Predict and publish, before the workers start; they start with a new sampler iterator."""
        run = _Run(None)
        with self._reporting_errors(f"no plan for {self._name}"):
            try:
                self._begin(run, iterator)
            except UnpredictableOrder:
                return  # the sampler's iterator may be predictable, once it exists
            self._latest, iterator._penstock_run = run.token, run

    def before_draw(self, iterator: Any) -> None:
        """Publish the order, before the first index of an iterator is drawn."""
        run: _Run | None = iterator._penstock_run
        if run is not None and run.iterator is iterator._sampler_iter:
            return
        if run is not None and run.iterator is None:
            with self._reporting_errors(f"no plan for {self._name}"):
                self._confirm(run, iterator)
            return
        iterator._penstock_run = run = _Run(iterator._sampler_iter)
        self._latest = run.token
        with self._reporting_errors(f"no plan for {self._name}"):
            self._begin(run, iterator)

    def after_draw(self, iterator: Any, index: Any) -> None:
        """Compare the index that was drawn with the predicted order."""
        run: _Run | None = iterator._penstock_run
        if self.over or run is None or run.order is None or run.token is not self._latest:
            return
        with self._reporting_errors(f"the plan for {self._name} ends"):
            self._compare(run, index)

    @contextmanager
    def _reporting_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            self._stop(f"{what}: {error}", error.hint)
        except Exception as error:  # noqa: BLE001 (our bug must not stop a training)
            self._stop(f"{what}: {error!r}", "please report this")

    def _begin(self, run: "_Run", iterator: Any) -> None:
        sampler, dataset = iterator._index_sampler, iterator._dataset
        if _is_planned(sampler):
            self.over = True  # it publishes its order itself
            return
        if _declines(sampler):
            self.over = True
            inform(f"{self._name}: no plan, since its sampler has penstock_plan = False")
            return
        if _is_iterable(dataset):
            raise UnpredictableOrder(
                "only its workers know the order of an IterableDataset",
                hint="readahead still helps; a data set with an index can be planned",
            )
        # First the files: a sampler whose order nobody can use is not iterated.
        files = [] if self._held else files_of(dataset)
        run.forecast = Forecast(sampler, run.iterator, dataset, self._generator)
        first = run.forecast.draw(_FIRST)
        if not self._held:
            self._held.append(_take_unused(dataset) or Publisher(files))
        publisher = self._held[0]
        run.most = max(2 * publisher.length, _LEAST_DRAWN)
        guessed = publisher.has_next
        if publisher.begin(run.parts(first)):
            self._wrong_announcements += guessed
        self._learn_epoch(sampler)
        run.refill_at = len(run.order or ()) // 2
        inform(f"{self._name}: {len(run.order or ()):,} samples planned")

    def _confirm(self, run: "_Run", iterator: Any) -> None:
        """Check that the published order begins as that of the iterator which exists now."""
        run.iterator = iterator._sampler_iter
        sampler, dataset = iterator._index_sampler, iterator._dataset
        forecast = Forecast(sampler, run.iterator, dataset, self._generator)
        first = forecast.draw(_FIRST)
        predicted = run.order or array("q")
        # Not all of it, which would take as long again: each index is compared when it is drawn.
        if first == predicted[: len(first)] and (
            not forecast.ended or len(first) == len(predicted)
        ):
            return
        run.forecast = forecast
        self._held[0].begin(run.parts(first))
        run.refill_at = len(run.order or ()) // 2

    def _learn_epoch(self, sampler: Any) -> None:
        """Note whether the script calls set_epoch with a new number each time, as it should."""
        epoch = getattr(sampler_with_epochs(sampler), "epoch", None)
        if self._epoch is not None:
            self._epochs_advance = epoch != self._epoch
        self._epoch = epoch if isinstance(epoch, int) else None

    def _compare(self, run: "_Run", index: Any) -> None:
        assert run.order is not None
        publisher = self._held[0]
        drawn = array("q")
        add_indices(drawn, index)
        if drawn != run.order[run.position : run.position + len(drawn)]:
            self._mispredicted(run, publisher)
            return
        run.position += len(drawn)
        self._largest_batch = max(self._largest_batch, len(drawn))
        publisher.hand_out(len(drawn), self._batches_out * self._largest_batch)
        if run.position >= run.refill_at:
            self._refill(run, publisher)
        if (problem := publisher.problem()) is not None:
            warn_once(f"{self._name}: {problem}")

    def _mispredicted(self, run: "_Run", publisher: Publisher) -> None:
        run.order = None
        publisher.withdraw()
        self._wrong += 1
        hint = "wrap it in penstock.integrations.torch.PlannedSampler"
        if self._wrong < _MOST_WRONG:
            warn_once(
                f"the order of {self._name} was predicted wrongly: no plan for now",
                hint,
            )
        else:
            self._stop(
                f"the order of {self._name} cannot be predicted: no more plans",
                hint,
            )

    def _refill(self, run: "_Run", publisher: Publisher) -> None:
        forecast = run.forecast
        assert forecast is not None
        assert run.order is not None
        run.refill_at = sys.maxsize
        if not forecast.ended:  # an endless sampler, or a very long one: published in parts
            more = forecast.draw(run.most // 2)
            publisher.extend(more)
            run.order = run.order[run.position :] + more
            run.position, run.refill_at = 0, len(run.order) // 2
        elif self._wrong_announcements < _MOST_WRONG:
            epoch = self._epoch
            if epoch is not None and self._epochs_advance:
                epoch += 1
            try:
                if not forecast.advance(epoch=epoch, seeds_workers=self._seeds_workers):
                    return
                following = forecast.draw(run.most)
            except UnpredictableOrder:
                return  # only this epoch can be predicted
            if following and forecast.ended and not forecast.uses_shared_numbers:
                publisher.announce(following)

    def _stop(self, what: str, hint: str | None) -> None:
        self.over = True
        warn_once(what, hint)
        _close_all(self._held)


class _Run:
    """One epoch of a loader: one iterator of its sampler."""

    def __init__(self, iterator: object) -> None:
        self.iterator = iterator  # None until it exists
        self.token = object()
        self.forecast: Forecast | None = None
        self.order: array[int] | None = None  # as predicted; None if not, or wrongly
        self.position = 0
        self.refill_at = 0
        self.most = _LEAST_DRAWN

    def parts(self, first: "array[int]") -> Iterator["array[int]"]:
        """Yield the order in parts, so that the first is published before the rest is drawn."""
        self.order = array("q", first)
        yield first
        assert self.forecast is not None
        while not self.forecast.ended and len(self.order) < self.most:
            rest = self.forecast.draw(self.most - len(self.order))
            self.order += rest
            yield rest


# -- the watch of each loader, and plans kept for the next loader ------------------------------

_watches: "weakref.WeakKeyDictionary[Any, Watch]" = weakref.WeakKeyDictionary()
_unused: "weakref.WeakKeyDictionary[Any, list[Publisher]]" = weakref.WeakKeyDictionary()


def _watch_of(loader: Any) -> Watch | None:
    try:
        if loader not in _watches:
            _watches[loader] = Watch(loader)
        return _watches[loader]
    except Exception as error:  # noqa: BLE001 (our bug must not stop a training)
        warn_once(f"no plan for {type(loader).__name__}: {error!r}", "please report this")
        return None


def _keep_for_next_loader(held: list[Publisher], reference: "weakref.ref[Any] | None") -> None:
    """Keep the plan of a loader that is gone: many scripts make a loader for each epoch, and the
    next one over the same data set takes this plan."""
    dataset = reference() if reference is not None else None
    if dataset is None or not held:
        _close_all(held)
        return
    held[0].withdraw()
    if dataset not in _unused:
        _unused[dataset] = []
        weakref.finalize(dataset, _close_all, _unused[dataset])
    _unused[dataset].append(held.pop())


def _take_unused(dataset: Any) -> Publisher | None:
    waiting = _unused.get(dataset) if _is_weakly_referable(dataset) else None
    return waiting.pop() if waiting else None


def _close_all(publishers: list[Publisher]) -> None:
    while publishers:
        publishers.pop().close()


def _is_weakly_referable(obj: Any) -> bool:
    return type(obj).__weakrefoffset__ != 0 and type(obj).__hash__ is object.__hash__


def _is_planned(sampler: Any) -> bool:
    return any(getattr(one, "publishes_its_order", False) for one in _nested(sampler))


def _declines(sampler: Any) -> bool:
    """Whether a sampler is not to be iterated in advance: it has effects outside of itself."""
    return any(getattr(one, "penstock_plan", True) is False for one in _nested(sampler))


def _nested(sampler: Any) -> Iterator[Any]:
    """Yield a sampler and those that it draws from."""
    for _ in range(8):
        yield sampler
        sampler = getattr(sampler, "sampler", getattr(sampler, "batch_sampler", None))


def _is_iterable(dataset: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return isinstance(dataset, torch.utils.data.IterableDataset)
