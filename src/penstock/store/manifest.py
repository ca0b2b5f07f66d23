"""A list of paths and sizes, for web servers that cannot list (`--manifest FILE`).

One object a line: `SIZE PATH`, or JSON `{"path": …, "size": …, "etag": …}`. Empty lines and
lines that start with # are passed over. gzip by its ending.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from penstock.errors import OptionError
from penstock.store import ObjectInfo

_PAGE_ENTRIES = 1000


def read_manifest(path: Path) -> Iterator[list[ObjectInfo]]:
    page: list[ObjectInfo] = []
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip() or line.startswith("#"):
                    continue
                page.append(_parse_line(line.rstrip("\n"), f"{path}:{number}"))
                if len(page) >= _PAGE_ENTRIES:
                    yield page
                    page = []
    except OSError as error:
        raise OptionError(f"--manifest {path}: {error.strerror or error}") from error
    yield page


def _parse_line(line: str, where: str) -> ObjectInfo:
    hint = "one object a line: `SIZE PATH`, or JSON with path, size and perhaps etag"
    if line.startswith("{"):
        try:
            fields = cast(dict[str, Any], json.loads(line))
            etag = str(fields.get("etag", ""))
            path, size = str(fields["path"]), int(fields["size"])
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{where}: not an object line: {error}", hint=hint) from error
    else:
        number, _, path = line.partition(" ")
        etag = ""
        if not number.isdigit() or not path:
            raise OptionError(f"{where}: not an object line: {line[:80]!r}", hint=hint)
        size = int(number)
    if size < 0:
        raise OptionError(f"{where}: a size below zero", hint=hint)
    return ObjectInfo(path, size, 0, etag.replace('"', ""))
