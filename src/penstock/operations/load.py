"""DataLoad: load a data set, or parts of it, into the cache.

Does what `penstock warm` does, over the same socket. A load keeps no state but the cache: started
again, it skips what is cached.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import find_served
from penstock.daemon.warm_client import WarmClient, WarmRequest
from penstock.errors import StoreError, UsageError
from penstock.operations.backup import cached_paths, local_folder
from penstock.operations.options import LoadOptions, read_load_options
from penstock.operations.work import Work
from penstock.specs.operations import DataLoad
from penstock.units import counted, format_size

_LISTING_TAKES_AT_MOST_S = 3600

Json = dict[str, Any]


def run(work: Work) -> Json:
    resource = work.resource
    assert isinstance(resource, DataLoad)
    spec = resource.spec
    options = read_load_options(spec.options)
    for line in options.without_effect:
        work.add_event("NoEffect", line)
    namespace = spec.dataset.namespace or resource.metadata.namespace
    mountpoint = work.mountpoint(spec.dataset.name, namespace)
    if spec.load_metadata or options.metadata_only:
        work.report({"phase": "listing"})
        ask(find_served(mountpoint).socket_path, "refresh", timeout_s=_LISTING_TAKES_AT_MOST_S)
    if options.metadata_only:
        return {"Loaded": "metadata only"}
    if options.backup is not None:
        name = f"{spec.dataset.name}-{namespace}"
        listed = cached_paths(local_folder(options.backup, "spec.options.backup"), name)
        return _infos(load_listed(mountpoint, listed, work.report))
    paths = [target.path.strip("/") for target in spec.target]
    return _load(work, mountpoint, [] if "" in paths else paths, options)


def load_listed(
    mountpoint: Path, paths: Iterable[str], progress: Callable[[Json], None] = lambda _report: None
) -> Json:
    """Load those of the listed files that exist, for a data set that was restored."""
    wish = WarmRequest(skip_missing=True, progress=lambda report: progress(_progress(report)))
    with WarmClient(mountpoint, wish) as warming:
        warming.add_listed(paths)
        return warming.run(everything=False)


def _load(work: Work, mountpoint: Path, paths: list[str], options: LoadOptions) -> Json:
    until_s = None if options.timeout_s is None else time.monotonic() + options.timeout_s

    def progress(report: Json) -> None:
        if until_s is not None and time.monotonic() > until_s:
            raise UsageError(
                "spec.options.timeout is over",
                hint="apply it again, with a longer timeout: it continues where it stopped",
            )
        work.report(_progress(report))

    def started(plan: Json) -> None:
        if not plan["fits"]:
            work.add_event(
                "DoesNotFit",
                f"{plan['files']:,} files, {format_size(plan['bytes'])}, do not fit the cache; "
                f"about {format_size(plan['fitting_bytes'])} will be cached",
            )

    wish = WarmRequest(
        order=options.order,
        page_cache=options.page_cache,
        concurrency=options.concurrency,
        bytes_per_s=options.bytes_per_s,
        started=started,
        progress=progress,
    )
    with WarmClient(mountpoint, wish) as warming:
        warming.add_patterns(paths)
        answer = warming.run(everything=not paths)
    if answer["failed_files"]:
        first = answer["failures"][0]
        raise StoreError(
            f"{answer['failed_files']:,} of {answer['files']:,} files could not be loaded; "
            f"{first['path']}: {first['why']}",
            hint="apply it again: it continues where it stopped",
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


def _progress(report: Json) -> Json:
    return {
        "phase": report["phase"],
        "files": report.get("done_files", report.get("looked_files", 0)),
        "ofFiles": report["files"],
        "bytes": report.get("done_bytes", 0),
        "ofBytes": report["bytes"],
    }


def _infos(answer: Json) -> Json:
    infos = {
        "Cached": f"{answer['cached_files']:,} of {counted(answer['files'], 'file')}, "
        f"{format_size(answer['cached_bytes'])} of {format_size(answer['bytes'])} "
        f"({answer['cached_percentage']:g}%)",
        "Fetched": f"{answer['fetched_files']:,} files, {format_size(answer['fetched_bytes'])}",
    }
    if answer["page_cache_bytes"] is not None:
        infos["PageCache"] = format_size(answer["page_cache_bytes"])
    return infos
