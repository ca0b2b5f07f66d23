"""penstock plan: what training on a data set will be like, before it is run."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.cache.policy import POLICIES
from penstock.cache.tier import DEFAULT_HIGH
from penstock.daemon.control import ask
from penstock.daemon.registry import absolute, find_served
from penstock.errors import OptionError
from penstock.units import (
    MIB,
    format_bit_rate,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from penstock.warm.simulate import (
    BUSY_ENOUGH,
    MOST_SIZES,
    Dataset,
    Epoch,
    Minimums,
    Rates,
    Rig,
    Shuffles,
    Strategy,
    find_minimums,
    predict_warm_up,
    run_epochs,
)

# What `penstock plan` shows a person. Apart, because rich takes 28 ms to import.

_COLUMNS = ("WAY", "EPOCH", "BUSY", "STALL", "TIME", "FIRST BATCH", "HITS", "FROM STORE", "GETS")
_LEAST_WIDTH = 100  # in a pipe or a file there is no terminal to be narrow


def show(found: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _LEAST_WIDTH)
    console.print(
        f"{found['files']:,} files, {format_size(found['bytes'])}; "
        f"the accelerator takes {format_bit_rate(found['demand_bytes_per_s'])}; "
        f"the cache holds {_share(found)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print()
    console.print(_table(found["ways"]))
    console.print()
    for sentence in found["advice"]:
        console.print(sentence, highlight=False, soft_wrap=True)


def _share(found: dict[str, Any]) -> str:
    share = min(1.0, found["cache_bytes"] / found["bytes"]) if found["bytes"] else 1.0
    return "all of it" if share == 1 else f"{share:.0%} of it" if share else "nothing"


def _table(ways: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "WAY" else "right", no_wrap=True)
    for way in ways:
        name = way["way"]
        if "warm_up" in way:
            loading = way["warm_up"]
            table.add_row(
                name,
                "before",
                "-",
                "-",
                _time(loading["whole_s"]),
                "-",
                "-",
                format_size(loading["store_bytes"]),
                f"{loading['gets']:,}",
            )
            name = ""
        for epoch in way["epochs"]:
            table.add_row(
                name,
                _numbers(epoch),
                f"{epoch['busy']:.0%}",
                _time(epoch["stall_s"]),
                _time(epoch["whole_s"]),
                _time(epoch["first_batch_s"]),
                f"{epoch['hit_share']:.0%}",
                format_size(epoch["store_bytes"]),
                f"{epoch['gets']:,}",
            )
            name = ""
        table.add_row("", "all", "", "", _time(way["whole_s"]), "", "", "", "", end_section=True)
    return table


def _numbers(epoch: dict[str, Any]) -> str:
    first, last = epoch["number"], epoch["until"]
    return str(first) if first == last else f"{first} to {last}"


def _time(seconds: float) -> str:
    """A first batch may take milliseconds, an epoch hours."""
    if seconds < 0.0005:
        return "0 s"
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)


# What `penstock plan` answers: figures for programs, and sentences made of them.

# From the third epoch on all are alike: what a cache holds does not change any more.
_DIFFERENT_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Question:
    dataset: Dataset
    rig: Rig
    epochs: int
    seed: int


def answer(question: Question) -> dict[str, Any]:
    dataset, rig = question.dataset, question.rig
    shuffles = Shuffles(dataset, rig.batch, question.seed)
    numbers = range(1, min(question.epochs, _DIFFERENT_EPOCHS) + 1)
    runs = {way: run_epochs(shuffles, rig, way, numbers) for way in Strategy}
    smallest = find_minimums(shuffles, rig)
    return {
        "files": dataset.files,
        "bytes": dataset.size_bytes,
        "demand_bytes_per_s": rig.rates.samples_per_s * dataset.mean_bytes,
        "cache_bytes": rig.cache_bytes,
        "ways": [_way(way, runs[way], question) for way in Strategy],
        "smallest": {
            "busy": BUSY_ENOUGH,
            "bandwidth_bytes_per_s": smallest.bandwidth_bytes_per_s,
            "concurrency": smallest.concurrency,
            "workers": smallest.workers,
            "cache_share": smallest.cache_share,
            "cache_share_planned": smallest.cache_share_planned,
        },
        "advice": [
            _with_a_plan(runs[Strategy.PLANNED][0], smallest),
            _without(runs[Strategy.UNPLANNED][0], smallest, rig),
            *_too_few_workers(rig),
        ],
    }


def _way(way: Strategy, epochs: tuple[Epoch, ...], question: Question) -> dict[str, Any]:
    later = question.epochs - len(epochs)
    found: dict[str, Any] = {"way": way.value, "storage_is_told_the_order": way is Strategy.PLANNED}
    whole_s = sum(epoch.whole_s for epoch in epochs) + later * epochs[-1].whole_s
    if way is Strategy.WARMED:
        loading = predict_warm_up(question.dataset, question.rig)
        whole_s += loading.whole_s
        found["warm_up"] = {
            "whole_s": loading.whole_s,
            "store_bytes": round(loading.store_bytes),
            "gets": loading.gets,
        }
    found["whole_s"] = whole_s
    found["epochs"] = [
        {
            "number": epoch.number,
            "until": question.epochs if epoch is epochs[-1] else epoch.number,
            "busy": epoch.busy,
            "busy_after_first_batch": epoch.busy_after_first_batch,
            "stall_s": epoch.stall_s,
            "whole_s": epoch.whole_s,
            "samples_per_s": epoch.samples_per_s,
            "first_batch_s": epoch.first_batch_s,
            "store_bytes": round(epoch.store_bytes),
            "gets": epoch.gets,
            "hit_share": epoch.hit_share,
        }
        for epoch in epochs
    ]
    return found


def _with_a_plan(first: Epoch, smallest: Minimums) -> str:
    said = f"With a plan the accelerator is busy {first.busy:.0%} of the first epoch"
    rate, gets = smallest.bandwidth_bytes_per_s, smallest.concurrency
    needed = " or ".join(
        ([] if rate is None else [format_bit_rate(rate)])
        + ([] if gets is None else [f"{gets:,} GET{'s' * (gets > 1)} in flight"])
    )
    if first.busy >= BUSY_ENOUGH:
        return f"{said}; {needed} would be enough for {BUSY_ENOUGH:.0%}."
    if needed:
        said += f"; it takes {needed} for {BUSY_ENOUGH:.0%}"
    else:
        said += f"; neither bandwidth nor GETs in flight alone make it {BUSY_ENOUGH:.0%}"
    return said + _later(smallest.cache_share_planned, bool(needed))


def _without(first: Epoch, smallest: Minimums, rig: Rig) -> str:
    said = f"Without a plan it is busy {first.busy:.0%} of the first epoch"
    if first.busy >= BUSY_ENOUGH:
        return f"{said}: {rig.rates.workers:,} workers are enough to hide the latency."
    if smallest.workers is None:
        said += f"; no number of workers makes it {BUSY_ENOUGH:.0%}"
    else:
        said += f"; it takes {smallest.workers:,} workers for {BUSY_ENOUGH:.0%}"
    return said + _later(smallest.cache_share, smallest.workers is not None)


def _later(cache_share: float | None, first_can_be_helped: bool) -> str:
    """The end of a sentence on the first epoch: what a cache does from the second one on."""
    if cache_share is None:
        return "."
    if cache_share == 0:
        return "; from epoch 2 on it is busy without a cache."
    if first_can_be_helped:
        return f", or from epoch 2 on a cache of {cache_share:.0%}."
    return f"; from epoch 2 on a cache of {cache_share:.0%} does."


def _too_few_workers(rig: Rig) -> list[str]:
    """No store and no cache can help a loader that is too slow by itself."""
    rates = rig.rates
    if rates.sample_s * rates.samples_per_s <= rates.workers:
        return []
    most = rates.workers / rates.sample_s
    return [
        f"The loader itself is too slow: {rates.workers:,} workers that work "
        f"{rates.sample_s * 1000:g} ms on a sample make {most:,.0f} samples/s."
    ]


_WORDS_HINT = "give a mount point, or words like files=1281167,mean=110KiB"
_MOST_SAMPLES_PER_S = 1e9
_MOST = 1 << 60  # files, or bytes of one: what a catalog can hold


@click.command()
@click.option(
    "--dataset",
    "dataset_",
    required=True,
    metavar="MOUNTPOINT|WORDS",
    help="A mount, or files=N,mean=SIZE for what is not there yet.",
)
@click.option(
    "--samples-per-s",
    required=True,
    type=float,
    metavar="N",
    help="What the accelerator takes, or all of them together.",
)
@click.option(
    "--latency",
    default="30ms",
    show_default=True,
    metavar="DURATION",
    help="Of one GET, without its bytes.",
)
@click.option(
    "--bandwidth",
    default="10Gbit",
    show_default=True,
    metavar="RATE",
    help="Of all GETs together: 10Gbit, 200MiB/s.",
)
@click.option(
    "--cache",
    "cache_",
    metavar="SHARE|SIZE",
    help="What the cache holds: 50%, 100GiB. [the mount's quota, or all]",
)
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default="keep",
    show_default=True,
    help="What stays when the cache is full.",
)
@click.option(
    "--page-cache",
    default="0",
    show_default=True,
    metavar="SIZE",
    help="Memory for pages; 0: none stay for the next epoch. A bare number counts MiB.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65536),
    default=256,
    show_default=True,
    metavar="N",
    help="GETs in flight, at most.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    metavar="N",
    help="Samples that the accelerator takes at once.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    metavar="N",
    help="Processes of the loader.",
)
@click.option(
    "--sample-time",
    default="0ms",
    show_default=True,
    metavar="DURATION",
    help="A worker's own work on a sample: read it from the cache, decode it.",
)
@click.option(
    "--epochs", type=click.IntRange(1, 100_000), default=3, show_default=True, metavar="N"
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Of the shuffles: the same seed gives the same figures.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def plan(
    dataset_: str, cache_: str | None, epochs: int, seed: int, output: str, **options: Any
) -> None:
    """Predict epochs, stalls and traffic, and the least that keeps the accelerator busy.

    Nothing is read and nothing is asked of the store. The first epoch starts from an empty cache;
    "warm-up" fills the cache before it.

    \b
    Example:
      penstock plan --dataset files=1281167,mean=110KiB --samples-per-s 1786 --cache 50%
      penstock plan --dataset /mnt/imagenet --samples-per-s 1786 --latency 30ms --bandwidth 10Gbit
    """
    rates = _read_rates(options)
    pages = parse_size(options["page_cache"], what="--page-cache", bare_unit=MIB)
    dataset, quota = _read_dataset(dataset_)
    if cache_ is not None:
        quota = _parse_cache(cache_, dataset)
    rig = Rig(rates, options["batch"], quota, pages, options["policy"])
    found = answer(Question(dataset, rig, epochs, seed))
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        # merged

        show(found)


def _read_rates(options: dict[str, Any]) -> Rates:
    samples_per_s = options["samples_per_s"]
    if not 0 < samples_per_s <= _MOST_SAMPLES_PER_S:
        raise OptionError(
            f"--samples-per-s: {samples_per_s:g} is not a rate that can be kept up",
            hint="one H100 takes 1786 on ResNet-50",
        )
    bandwidth = parse_rate(options["bandwidth"], what="--bandwidth")
    if bandwidth <= 0:
        raise OptionError("--bandwidth: nothing comes at no bandwidth", hint="at least 1kbit")
    return Rates(
        samples_per_s=samples_per_s,
        latency_s=parse_duration(options["latency"], what="--latency"),
        bandwidth_bytes_per_s=bandwidth,
        workers=options["workers"],
        concurrency=options["concurrency"],
        sample_s=parse_duration(options["sample_time"], what="--sample-time"),
    )


def _read_dataset(text: str) -> tuple[Dataset, float]:
    """And what its cache holds: for one that is not there yet, all of it."""
    if "=" in text and not text.startswith(("/", ".")):
        dataset = _parse_words(text)
        return dataset, dataset.size_bytes
    mountpoint = absolute(text)
    found = ask(find_served(mountpoint).socket_path, "stats")
    if not found["files"]:
        raise OptionError(f"--dataset: {mountpoint} shows no files", hint=_WORDS_HINT)
    dataset = Dataset(found["files"], found["bytes"], _read_sizes(found))
    return dataset, sum(tier["quota_bytes"] * DEFAULT_HIGH for tier in found["tiers"])


def _read_sizes(found: dict[str, Any]) -> list[int]:
    """None from a server that is older than this command: then all files count as alike."""
    if "catalog" not in found:
        return []
    from penstock.catalog.file_set import read_sizes

    return list(read_sizes(Path(found["catalog"]), MOST_SIZES))


def _parse_words(text: str) -> Dataset:
    words: dict[str, int] = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        name = name.strip()
        if name not in ("files", "mean"):
            raise OptionError(f"--dataset: unknown word {word.strip()!r}", hint=_WORDS_HINT)
        if name in words:
            raise OptionError(f"--dataset: {name} is given twice", hint=_WORDS_HINT)
        words[name] = _parse_count(value) if name == "files" else _parse_mean(value)
    if missing := [name for name in ("files", "mean") if name not in words]:
        raise OptionError(f"--dataset: {missing[0]}= is missing", hint=_WORDS_HINT)
    return Dataset(words["files"], words["files"] * words["mean"])


def _parse_count(value: str) -> int:
    value = value.strip().replace("_", "")
    if not (value.isascii() and value.isdigit()) or not 0 < int(value) <= _MOST:
        raise OptionError(f"--dataset: files={value} is not a number of files", hint=_WORDS_HINT)
    return int(value)


def _parse_mean(value: str) -> int:
    size = parse_size(value, what="--dataset: mean")
    if not 0 < size <= _MOST:
        raise OptionError(f"--dataset: mean={value} is not a file's size", hint=_WORDS_HINT)
    return size


def _parse_cache(text: str, dataset: Dataset) -> float:
    if not text.strip().endswith("%"):
        return parse_size(text, what="--cache")
    try:
        share = float(text.strip()[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < math.inf:
        raise OptionError(f"--cache: {text!r} is not a share", hint="write it like 50% or 100GiB")
    return share * dataset.size_bytes
