"""A list of paths and sizes, for web servers that cannot list (`--manifest FILE`).

One object a line: `SIZE PATH`, or JSON `{"path": …, "size": …, "etag": …}`. Empty lines and
lines that start with # are passed over. gzip by its ending.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

from penstock.errors import OptionError
from penstock.store import ObjectInfo

_PAGE_ENTRIES = 1000
# The longest path that can be a file's (4,095 bytes) fits twice, even with every byte escaped.
_LINE_MAX = 65_536
_HINT = "one object a line: `SIZE PATH`, or JSON with path, size and perhaps etag"


def read_manifest(path: Path) -> Iterator[list[ObjectInfo]]:
    page: list[ObjectInfo] = []
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="surrogateescape") as lines:
            for number in count(1):
                line = lines.readline(_LINE_MAX + 1)
                if not line:
                    break
                if len(line) > _LINE_MAX:
                    raise OptionError(
                        f"{path}:{number}: a line of more than {_LINE_MAX:,} characters",
                        hint=_HINT,
                    )
                if not line.strip() or line.startswith("#"):
                    continue
                page.append(_parse_line(line.rstrip("\n"), f"{path}:{number}"))
                if len(page) >= _PAGE_ENTRIES:
                    yield page
                    page = []
    except (OSError, EOFError, zlib.error) as error:  # the last two: a broken gzip file
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"--manifest {path}: {why}") from error
    yield page


def _parse_line(line: str, where: str) -> ObjectInfo:
    if line.startswith("{"):
        try:
            fields = cast(dict[str, Any], json.loads(line))
            etag = str(fields.get("etag", ""))
            path, size = str(fields["path"]), int(fields["size"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise OptionError(f"{where}: not an object line: {error}", hint=_HINT) from error
    else:
        number, _, path = line.partition(" ")
        etag = ""
        # 20 digits are more bytes than there are; of thousands Python makes no number.
        if not (number.isascii() and number.isdigit() and len(number) <= 20 and path):
            raise OptionError(f"{where}: not an object line: {line[:80]!r}", hint=_HINT)
        size = int(number)
    if size < 0:
        raise OptionError(f"{where}: a size below zero", hint=_HINT)
    return ObjectInfo(path, size, 0, etag.replace('"', ""))
