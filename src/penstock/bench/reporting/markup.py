"""HTML and SVG from parts. Text is escaped by being text: only `Html` goes in as it is. Pure."""

from collections.abc import Iterable
from html import escape
from urllib.parse import quote

Attribute = str | float | bool | None
_VOID = frozenset({"br", "hr", "meta"})


class Html(str):
    """Markup that is already escaped."""

    __slots__ = ()


def element(tag: str, *children: str | None, **attributes: Attribute) -> Html:
    """`element("td", name, class_="n")`. Underscores in names of attributes become hyphens; an
    attribute that is None or False is left out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(child for child in children if child)}</{tag}>")


def join(parts: Iterable[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else escaped(part) for part in parts))


def escaped(text: str) -> Html:
    return Html(escape(clean(text), quote=True))


def clean(text: str) -> str:
    """Without what no page may hold: control characters, halves of surrogate pairs. Marks that
    turn the direction of writing go too: a name must not reorder the figures beside it."""
    return "".join(
        "\ufffd"
        if (ord(one) < 32 and one not in "\n\t")
        or 0x7F <= ord(one) <= 0x9F
        or 0xD800 <= ord(one) <= 0xDFFF
        or one in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        else one
        for one in text
    )


def link(path: str, prefix: str = "") -> Html:
    """To a file of the run, by a path that is never taken for an address."""
    place = quote(clean(f"{prefix}{path}"), safe="/.-_~")
    return element("a", path, href=place if place.startswith("../") else f"./{place}")


def _value(value: Attribute) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(clean(str(value)), quote=True)
