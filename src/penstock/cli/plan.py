"""penstock plan: what training on a data set will be like, before it is run."""

import json
import math
from pathlib import Path
from typing import Any

import click

from penstock.cache.policy import POLICIES
from penstock.cache.tier import DEFAULT_HIGH
from penstock.cli.plan_words import Question, answer
from penstock.daemon.control import ask
from penstock.daemon.registry import absolute, find_served
from penstock.errors import OptionError
from penstock.units import MIB, parse_duration, parse_rate, parse_size
from penstock.warm.feeding import Rates
from penstock.warm.simulate import MOST_SIZES, Dataset, Rig

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
        from penstock.cli.plan_view import show

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
    from penstock.catalog.sizes import read_sizes

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
