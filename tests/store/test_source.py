"""What a source may look like."""

import pytest

from penstock.errors import SourceError
from penstock.store.source import Source, parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("s3://bucket", Source("s3", "bucket", "")),
        ("s3://bucket/a/b/", Source("s3", "bucket", "a/b")),
        ("oss://bucket/dir", Source("oss", "bucket", "dir")),
        ("file:///data/set", Source("file", "", "/data/set")),
        ("https://host:8443/dav/set/", Source("https", "host:8443", "dav/set")),
    ],
)
def test_a_source_is_taken_apart(text: str, source: Source) -> None:
    assert parse_source(text) == source
    assert parse_source(str(source)) == source


@pytest.mark.parametrize(
    "text",
    ["bucket", "/data", "ftp://host/x", "s3://", "s3://bucket/a//b", "s3://bucket/../x",
     "s3://key:secret@bucket/x", "https://user:pw@host/x", "file://relative"],
)  # fmt: skip
def test_what_is_no_source_is_refused_and_no_secret_is_repeated(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert "secret" not in str(caught.value)
    assert ":pw" not in str(caught.value)
