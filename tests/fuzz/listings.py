"""What stores and people list: S3 pages, web pages, manifests."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.catalog.names import plausible_mtime_ns, why_implausible
from penstock.errors import PenstockError
from penstock.store import ObjectInfo
from penstock.store.indexpage import IndexEntry, read_index
from penstock.store.s3listing import read_page
from penstock.store.weblisting import read_manifest
from tests.fuzz.target import Check, Target

_ADDRESS = "http://host:80/a%20b/"
_PIECE = 100  # bytes that come by themselves


def _check_infos(found: list[ObjectInfo]) -> None:
    for info in found:
        assert isinstance(info.key, str)
        assert isinstance(info.version, str)
        assert isinstance(info.size_bytes, int)
        if why_implausible(info) is None:
            assert 0 <= info.size_bytes < 1 << 63
            assert 0 <= plausible_mtime_ns(info) < 1 << 63


@contextmanager
def _open_s3(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        with suppress(PenstockError):
            _check_infos(read_page([data[:_PIECE], data[_PIECE:]], "s3://b").objects)

    yield check


@contextmanager
def _open_web_index(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        links: list[IndexEntry] = []
        with suppress(ValueError):
            links = read_index(pieces, _ADDRESS) or []
        for found in links:
            assert found.name.strip("/"), "no name"
            assert "/" not in found.name.removesuffix("/"), "not directly in the folder"
            assert found.name.removesuffix("/") not in (".", "..")
            assert found.size_bytes is None or found.size_bytes >= 0
            assert isinstance(found.mtime_ns, int)

    yield check


@contextmanager
def _open_manifest(folder: Path) -> Iterator[Check]:
    plain, packed = folder / "manifest", folder / "manifest.gz"

    def check(data: bytes) -> None:
        file = packed if data.startswith(b"\x1f\x8b") else plain
        file.write_bytes(data)
        try:
            for found in read_manifest(file):
                _check_infos(found)
        except PenstockError:
            pass

    yield check


def _entry(key: str, size: int = 5, when: str = "2024-01-01T00:00:00.000Z") -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{when}</LastModified>"
        f"<ETag>&quot;{'5d' * 16}&quot;</ETag><Size>{size}</Size></Contents>"
    )


def _page(*entries: str, token: str = "") -> bytes:
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
        f"<Prefix></Prefix><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}"
        f"{''.join(entries)}</ListBucketResult>"
    ).encode()


_LINES = b'12 a/b\n# no\n{"path": "c", "size": 3, "etag": "\\"v\\""}\n\n0 d e\n'
_APACHE = b"""<html><head><title>Index of /a b</title></head><body><h1>Index of /a b</h1>
<a href="?C=N;O=D">Name</a><hr><a href="/">Parent</a>
<a href="x.bin"><img></a> <a href="x.bin">x.bin</a>  2024-01-02 03:04  123
<a href="sub/">sub/</a> 02-Jan-2024 03:04    -
<a href="/a%20b/%2e%2e%2fy">y</a></body></html>"""

S3_TARGET = Target(
    "s3-listing",
    "a page lists objects with possible sizes, or is refused as no page of a listing",
    _open_s3,
    [
        _page(_entry("a"), _entry("b/", 0), _entry("c%20d")),
        _page(_entry("a"), token="more"),
        _page("<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>", "<KeyCount>1</KeyCount>"),
        b"<Error><Code>SlowDown</Code><Message>later</Message></Error>",
    ],
    (
        b"<Contents>",
        b"</Contents>",
        b"<Key>",
        b"<Size>",
        b"-1",
        b"99999999999999999999",
        b"<IsTruncated>true</IsTruncated>",
        b"<EncodingType>url</EncodingType>",
        b"%FF",
        b"&#0;",
        b"<!DOCTYPE x [<!ENTITY a 'aa'>]>",
        b"&a;",
        b"<![CDATA[",
        b"0001-01-01T00:00:00Z",
    ),
)
WEB_INDEX_TARGET = Target(
    "web-index",
    "a page names only what lies directly in its folder",
    _open_web_index,
    [_APACHE],
    (
        b"<a href=",
        b"../",
        b"%2f",
        b"//",
        b"http://[",
        b"<title>Index of",
        b"]]>",
        b"<!",
        b"<![",
        b"&#xD800;",
        b"\xff",
        b"99-Feb-0000 99:99",
        b"0000-00-00 00:00",
    ),
)
MANIFEST_TARGET = Target(
    "manifest",
    "each line is an object, or the manifest is refused with the number of the line",
    _open_manifest,
    [_LINES, gzip.compress(_LINES, mtime=0)],
    (
        b'{"path": ',
        b'"size": ',
        b"1e999",
        b"NaN",
        b"Infinity",
        b"null",
        b"[" * 2000,
        b"-1",
        b"9" * 5000,
        b'"\\ud800"',
        b"\xff",
    ),
)
