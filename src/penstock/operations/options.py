"""Options of data operations, under the names that people know from Fluid's engines. Pure.

An unknown name is an error that suggests the nearest one. An option of another engine that has no
effect here is reported with its reason.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.errors import OptionError, UsageError, did_you_mean
from penstock.units import parse_duration, parse_rate

_TRUE, _FALSE = ("", "true", "yes", "1"), ("false", "no", "0")
_MOST_AT_ONCE = 256
_THREADS = 16


@dataclass(frozen=True, slots=True)
class LoadOptions:
    page_cache: bool = False
    order: str = "name"
    concurrency: int | None = None
    bytes_per_s: int | None = None
    metadata_only: bool = False
    timeout_s: float | None = None
    without_effect: list[str] = field(default_factory=list[str])
    backup: str | None = None  # load the files that were cached when this backup was made


@dataclass(frozen=True, slots=True)
class MigrateOptions:
    threads: int = _THREADS
    include: list[str] = field(default_factory=list[str])
    exclude: list[str] = field(default_factory=list[str])
    start: str = ""
    end: str = ""
    limit: int | None = None
    update: bool = False  # copy only objects that are newer than the target's
    force: bool = False  # copy all objects
    existing: bool = True  # False: leave objects that the target has
    missing: bool = True  # False: add no objects to the target
    delete_to: bool = False
    delete_from: bool = False
    dry_run: bool = False
    bytes_per_s: int | None = None
    timeout_s: float | None = None
    without_effect: list[str] = field(default_factory=list[str])


_LOAD_NAMES = (
    "loadMemorydata", "loadMemoryData", "page-cache", "order", "concurrency",
    "threads", "rate", "loadMetadataOnly", "timeout", "backup",
)  # fmt: skip
_LOAD_ELSEWHERE = {
    "atomicCache": "a file counts as cached only when all of it is",
    "cacheListReplica": "one machine holds one copy",
    "hdfsConfig": "HDFS is not read",
    "enableForceLoad": "cached data that has not changed is not fetched again",
    "background": "it runs in the background already",
    "b": "it runs in the background already",
    "no-color": "there is no terminal",
    "quiet": "there is no terminal",
    "verbose": "`penstock describe` shows its progress",
    "check": "`penstock warm --check` shows what is cached",
    "evict": "`penstock warm --evict` removes data from the cache",
}

_MIGRATE_NAMES = (
    "threads", "concurrency", "include", "exclude", "start", "end", "limit", "update",
    "force-update", "ignore-existing", "existing", "delete-dst", "delete-src", "dry", "dry-run",
    "bwlimit", "rate", "timeout",
)  # fmt: skip
_ALWAYS_VERIFIED = "copies are always verified, by size, and by MD5 where there is one"
_MIGRATE_ELSEWHERE = {
    "check-all": _ALWAYS_VERIFIED,
    "check-new": _ALWAYS_VERIFIED,
    "check-change": _ALWAYS_VERIFIED,
    "perms": "objects have no owner and no mode",
    "links": "a link is copied as its target",
    "dirs": "only files are copied; their folders come with them",
    "inplace": "a file shows when it is complete",
    "list-threads": "Penstock chooses the number of listing requests",
    "list-depth": "Penstock chooses the number of listing requests",
    "no-https": "the endpoint's address has http or https",
    "no-color": "there is no terminal",
    "verbose": "`penstock describe` shows its progress",
    "quiet": "`penstock describe` shows its progress",
    "http-port": "no port is opened",
    "worker": "one process copies, many objects at once",
    "manager-addr": "one process copies, many objects at once",
    "storage-class": "objects get the bucket's default class",
}


def read_load_options(options: Mapping[str, str]) -> LoadOptions:
    ignored = _check_names(options, _LOAD_NAMES, _LOAD_ELSEWHERE, "DataLoad")
    reader = _Reader(options)
    order = options.get("order", "name")
    if order not in ("name", "newest", "largest"):
        raise _wrong("order", order, "name, newest or largest")
    return LoadOptions(
        reader.flag("page-cache", "loadMemorydata", "loadMemoryData"),
        order,
        reader.count("concurrency", "threads"),
        reader.rate(),
        reader.flag("loadMetadataOnly"),
        reader.seconds("timeout"),
        ignored,
        options.get("backup"),
    )


def read_migrate_options(options: Mapping[str, str]) -> MigrateOptions:
    ignored = _check_names(options, _MIGRATE_NAMES, _MIGRATE_ELSEWHERE, "DataMigrate")
    reader = _Reader(options)
    return MigrateOptions(
        threads=reader.count("threads", "concurrency") or _THREADS,
        include=reader.words("include"),
        exclude=reader.words("exclude"),
        start=options.get("start", ""),
        end=options.get("end", ""),
        limit=reader.number("limit"),
        update=reader.flag("update"),
        force=reader.flag("force-update"),
        existing=not reader.flag("ignore-existing"),
        missing=not reader.flag("existing"),
        delete_to=reader.flag("delete-dst"),
        delete_from=reader.flag("delete-src"),
        dry_run=reader.flag("dry", "dry-run"),
        bytes_per_s=reader.rate(),
        timeout_s=reader.seconds("timeout"),
        without_effect=ignored,
    )


def _check_names(
    options: Mapping[str, str], known: Iterable[str], elsewhere: Mapping[str, str], kind: str
) -> list[str]:
    ignored: list[str] = []
    for name in options:
        if name in elsewhere:
            ignored.append(f"spec.options.{name}: {elsewhere[name]}")
        elif name not in known:
            raise UsageError(
                f"spec.options.{name} is not an option of a {kind}",
                hint=did_you_mean(name, [*known, *elsewhere], "options: " + ", ".join(known)),
            )
    return ignored


class _Reader:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def flag(self, *names: str) -> bool:
        for name in names:
            if (text := self._options.get(name)) is not None:
                if text.lower() not in (*_TRUE, *_FALSE):
                    raise _wrong(name, text, "true or false")
                if text.lower() in _TRUE:
                    return True
        return False

    def number(self, name: str) -> int | None:
        if (text := self._options.get(name)) is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise _wrong(name, text, "a number")
        return int(text)

    def count(self, *names: str) -> int | None:
        for name in names:
            if (number := self.number(name)) is not None:
                if not 1 <= number <= _MOST_AT_ONCE:
                    raise _wrong(name, str(number), f"1 to {_MOST_AT_ONCE}")
                return number
        return None

    def words(self, name: str) -> list[str]:
        return [word for word in self._options.get(name, "").split(",") if word.strip("/ ")]

    def rate(self) -> int | None:
        """Read `rate`, or `bwlimit`, which is a number of Mbit/s as in JuiceFS."""
        if (text := self._options.get("rate")) is None:
            if (megabits := self.number("bwlimit")) is None:
                return None
            text = f"{megabits}Mbit"
        try:
            rate = int(parse_rate(text))
        except OptionError as error:
            raise _wrong("rate", text, "200MiB/s or 10Gbit") from error
        return rate or None

    def seconds(self, name: str) -> float | None:
        if (text := self._options.get(name)) is None:
            return None
        try:
            return parse_duration(text)
        except OptionError as error:
            raise _wrong(name, text, "30s, 10m or 2h") from error


def _wrong(name: str, text: str, hint: str) -> UsageError:
    return UsageError(f"spec.options.{name}: {text[:40]!r} is not valid", hint=f"write {hint}")
