"""DataLoad: brings a data set, or parts of it, into the cache before anyone reads them.

What `penstock warm` does, over the same socket. Nothing is kept of a load but what it has cached:
begun again, it passes over that.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.daemon.control import ask
from penstock.daemon.registry import find_served
from penstock.daemon.warming import Warming, Wish
from penstock.errors import StoreError, UsageError
from penstock.operations.backup import cached_paths, local_folder
from penstock.operations.options import LoadOptions, read_load_options
from penstock.operations.work import Work
from penstock.specs.operations import DataLoad
from penstock.units import format_size

_LISTING_TAKES_AT_MOST_S = 3600

Json = dict[str, Any]


def run(work: Work) -> Json:
    resource = work.resource
    assert isinstance(resource, DataLoad)
    spec = resource.spec
    options = read_load_options(spec.options)
    for line in options.without_effect:
        work.tell("NoEffect", line)
    namespace = spec.dataset.namespace or resource.metadata.namespace
    mountpoint = work.mountpoint(spec.dataset.name, namespace)
    if spec.load_metadata or options.metadata_only:
        work.report({"phase": "listing"})
        ask(find_served(mountpoint).socket_path, "refresh", timeout_s=_LISTING_TAKES_AT_MOST_S)
    if options.metadata_only:
        return {"Loaded": "the names alone"}
    if options.backup is not None:
        name = f"{spec.dataset.name}-{namespace}"
        listed = cached_paths(local_folder(options.backup, "spec.options.backup"), name)
        return _infos(load_listed(mountpoint, listed, work.report))
    paths = [target.path.strip("/") for target in spec.target]
    return _load(work, mountpoint, [] if "" in paths else paths, options)


def load_listed(
    mountpoint: Path, paths: Iterable[str], progress: Callable[[Json], None] = lambda _told: None
) -> Json:
    """Those of these files that are there, for a data set that was restored."""
    wish = Wish(skip_missing=True, progress=lambda told: progress(_progress(told)))
    with Warming(mountpoint, wish) as warming:
        warming.add_listed(paths)
        return warming.run(everything=False)


def _load(work: Work, mountpoint: Path, paths: list[str], options: LoadOptions) -> Json:
    until_s = None if options.timeout_s is None else time.monotonic() + options.timeout_s

    def progress(told: Json) -> None:
        if until_s is not None and time.monotonic() > until_s:
            raise UsageError(
                "spec.options.timeout is over",
                hint="applied again, it goes on where it was; a longer timeout helps",
            )
        work.report(_progress(told))

    def started(told: Json) -> None:
        if not told["fits"]:
            work.tell(
                "DoesNotFit",
                f"{told['files']:,} files, {format_size(told['bytes'])}, are more than the cache "
                f"holds; about {format_size(told['fitting_bytes'])} will fit",
            )

    wish = Wish(
        order=options.order,
        page_cache=options.page_cache,
        concurrency=options.concurrency,
        bytes_per_s=options.bytes_per_s,
        started=started,
        progress=progress,
    )
    with Warming(mountpoint, wish) as warming:
        warming.add_patterns(paths)
        answer = warming.run(everything=not paths)
    if answer["failed_files"]:
        first = answer["failures"][0]
        raise StoreError(
            f"{answer['failed_files']:,} of {answer['files']:,} files could not be loaded; "
            f"{first['path']}: {first['why']}",
            hint="applied again, it goes on where it was",
        )
    work.report(
        {
            "phase": "loaded",
            "files": answer["cached_files"],
            "ofFiles": answer["files"],
            "bytes": answer["cached_bytes"],
            "ofBytes": answer["bytes"],
        }
    )
    return _infos(answer)


def _progress(told: Json) -> Json:
    return {
        "phase": told["phase"],
        "files": told.get("done_files", told.get("looked_files", 0)),
        "ofFiles": told["files"],
        "bytes": told.get("done_bytes", 0),
        "ofBytes": told["bytes"],
    }


def _infos(answer: Json) -> Json:
    infos = {
        "Cached": f"{answer['cached_files']:,} of {answer['files']:,} files, "
        f"{format_size(answer['cached_bytes'])} of {format_size(answer['bytes'])} "
        f"({answer['cached_percentage']:g}%)",
        "Fetched": f"{answer['fetched_files']:,} files, {format_size(answer['fetched_bytes'])}",
    }
    if answer["page_cache_bytes"] is not None:
        infos["PageCache"] = format_size(answer["page_cache_bytes"])
    return infos
