"""penstock plan: predict a training on a data set before it is run."""

import json
import math
from typing import TYPE_CHECKING, Any

import click

from penstock.api import planning
from penstock.api.planning import POLICIES, Dataset, Rates, Rig, Training
from penstock.cli.options import output_option
from penstock.errors import OptionError
from penstock.units import (
    MIB,
    counted,
    format_bit_rate,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)

if TYPE_CHECKING:
    from rich.table import Table

_WORDS_HINT = "give a mount point, or words like files=1281167,mean=110KiB"
_MOST_SAMPLES_PER_S = 1e9
_MOST = 1 << 60  # files, or bytes of one: what a catalog can hold


@click.command()
@click.option(
    "--dataset",
    "dataset_",
    required=True,
    metavar="MOUNTPOINT|WORDS",
    help="A mount, or files=N,mean=SIZE for a data set that does not exist yet.",
)
@click.option(
    "--samples-per-s",
    required=True,
    type=float,
    metavar="N",
    help="How many samples the accelerators take per second, all together.",
)
@click.option(
    "--latency",
    default="30ms",
    show_default=True,
    metavar="DURATION",
    help="Latency of one GET, without its transfer.",
)
@click.option(
    "--bandwidth",
    default="10Gbit",
    show_default=True,
    metavar="RATE",
    help="Bandwidth of all GETs together: 10Gbit, 200MiB/s.",
)
@click.option(
    "--cache",
    "cache_",
    metavar="SHARE|SIZE",
    help="Size of the cache: 50%, 100GiB. [the mount's quota, or all]",
)
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default="keep",
    show_default=True,
    help="Which blocks stay when the cache is full.",
)
@click.option(
    "--page-cache",
    default="0",
    show_default=True,
    metavar="SIZE",
    help="Memory for pages that stay for the next epoch. A bare number counts MiB.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65536),
    default=256,
    show_default=True,
    metavar="N",
    help="At most N GETs in flight.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    metavar="N",
    help="Samples in a batch.",
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
    help="Time of a worker for one sample: read it from the cache, decode it.",
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
    help="Seed of the shuffles: the same seed gives the same figures.",
)
@output_option
def plan(
    dataset_: str, cache_: str | None, epochs: int, seed: int, output: str, **options: Any
) -> None:
    """Predict epochs, stalls and traffic of a training.

    Prints also the least bandwidth, workers and cache that keep the accelerator busy. Reads no
    file and asks no store. The first epoch starts with an empty cache; "warm-up" fills it before.

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
    prediction = planning.predict(Training(dataset, rig, epochs, seed))
    if output == "json":
        click.echo(json.dumps(prediction, indent=2))
    else:
        _show(prediction)


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
    """The data set, and how many bytes its cache holds; of one that does not exist yet, all."""
    if "=" in text and not text.startswith(("/", ".")):
        dataset = _parse_words(text)
        return dataset, dataset.size_bytes
    dataset, cache_bytes = planning.dataset_of_mount(text)
    if not dataset.files:
        raise OptionError(f"--dataset: {text} shows no files", hint=_WORDS_HINT)
    return dataset, cache_bytes


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


# -- for people -------------------------------------------------------------------------------

_COLUMNS = ("WAY", "EPOCH", "BUSY", "STALL", "TIME", "FIRST BATCH", "HITS", "FROM STORE", "GETS")
_LEAST_WIDTH = 100  # in a pipe or a file there is no terminal to be narrow


def _show(prediction: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _LEAST_WIDTH)
    console.print(
        f"{counted(prediction['files'], 'file')}, {format_size(prediction['bytes'])}; "
        f"the accelerator takes {format_bit_rate(prediction['demand_bytes_per_s'])}; "
        f"the cache holds {_share(prediction)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print()
    console.print(_table(prediction["ways"]))
    console.print()
    for sentence in prediction["advice"]:
        console.print(sentence, highlight=False, soft_wrap=True)


def _share(prediction: dict[str, Any]) -> str:
    share = (
        min(1.0, prediction["cache_bytes"] / prediction["bytes"]) if prediction["bytes"] else 1.0
    )
    return "all of it" if share == 1 else f"{share:.0%} of it" if share else "nothing"


def _table(ways: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

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
