"""Finds volumes of JuiceFS, which Penstock cannot read.

JuiceFS keeps a file as chunks in the bucket, and its name in a database. Shown in place, a volume
would be a folder of chunks without their names, or an empty folder. It takes at most two requests
to tell one from a bucket of ordinary objects.
"""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from penstock.errors import AccessDenied, SourceError
from penstock.metrics import Counters
from penstock.store.connect import StoreOptions
from penstock.store.retry import FIRST_CONTACT_S, open_reliable_store
from penstock.store.source import Source

# `juicefs format` writes NAME/juicefs_uuid; then come NAME/chunks/0/0/ID_INDEX_SIZE, or, with
# hashed prefixes, NAME/chunks/7F/0/….
_OF_A_VOLUME = re.compile(
    r"(?:.*/)?(?:juicefs_uuid|chunks/(?:[0-9]+|[0-9A-F]{2})/[0-9]+/[0-9]+_[0-9]+_[0-9]+)"
)
_HINT = "mount the volume with JuiceFS itself, or name a bucket of ordinary objects"


def refuse_volume(source: Source, options: StoreOptions) -> None:
    """Raise SourceError if a volume is where a `juicefs://` mount would keep it, or if there is
    nothing to show."""
    if options.juicefs is None:
        return
    parent, _, _ = options.juicefs.rpartition("/")
    for prefix in (options.juicefs, parent or ("/" if source.scheme == "file" else "")):
        place = replace(source, prefix=prefix)
        if any(_OF_A_VOLUME.fullmatch(key) for key in _first_keys(place, options)):
            what = "holds a JuiceFS volume, whose files only JuiceFS can read"
            raise SourceError(f"{place}: {what}", hint=_HINT)
    if not _first_keys(source, options):
        what = "there is nothing, neither objects nor a JuiceFS volume"
        raise SourceError(f"{source}: {what}", hint=_HINT)


def _first_keys(source: Source, options: StoreOptions) -> list[str]:
    """Return the keys of the first page of a listing. A place that is missing, or that these keys
    may not list, has none: the mount's own listing reports that of its source."""
    if source.scheme == "file" and not Path(source.prefix).is_dir():
        return []
    store = open_reliable_store(source, options, Counters())
    pages = store.with_first_contact_limit(FIRST_CONTACT_S).list_all("")
    with suppress(AccessDenied):
        for page in pages:
            return [found.key for found in page]
    return []
