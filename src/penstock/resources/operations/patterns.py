"""Which paths are meant, by the patterns of rsync and `juicefs sync`. Pure.

`*` and `?` stand for parts of a name, `**` for any number of folders. A pattern that begins with a
slash is bound to the beginning; another may match at any depth. One that matches a folder matches
all below it.
"""

import re
from collections.abc import Callable


def chooser(include: list[str], exclude: list[str]) -> Callable[[str], bool]:
    """What is included is meant, whatever else; what is excluded is not; of the rest everything is,
    unless there is only something to include."""
    kept = [_compiled(pattern) for pattern in include]
    left_out = [_compiled(pattern) for pattern in exclude]
    otherwise = not kept or bool(left_out)

    def choose(path: str) -> bool:
        if any(pattern.search(path) for pattern in kept):
            return True
        return otherwise and not any(pattern.search(path) for pattern in left_out)

    return choose


def _compiled(pattern: str) -> re.Pattern[str]:
    start = "^" if pattern.startswith("/") else "(?:^|/)"
    # One that ends in a slash means folders: something must lie below.
    end = "/" if pattern.endswith("/") else "(?:/|$)"
    body = "".join(map(_expression, re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|.", pattern.strip("/"))))
    return re.compile(start + body + end, re.DOTALL)


def _expression(token: str) -> str:
    if token in ("**", "**/"):
        return ".*" if token == "**" else "(?:.*/)?"
    if token in ("*", "?"):
        return "[^/]*" if token == "*" else "[^/]"
    if token.startswith("[") and len(token) > 1:
        inner = token[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
    return re.escape(token)
