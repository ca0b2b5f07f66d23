"""Every exception of the library becomes one of ours."""

import obstore.exceptions
import pytest
from obstore.exceptions import BaseError, GenericError

from penstock.errors import AccessDenied, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.store.translate import TRANSLATIONS, translate

LIBRARY = [
    kind
    for kind in vars(obstore.exceptions).values()
    if isinstance(kind, type) and issubclass(kind, BaseError)
]


@pytest.mark.parametrize("kind", LIBRARY)
def test_each_has_a_row_of_its_own(kind: type[Exception]) -> None:
    assert kind in [known for known, _, _ in TRANSLATIONS]
    assert isinstance(translate(kind("what"), "where"), PenstockError)


@pytest.mark.parametrize(
    ("text", "kind", "exit_code"),
    [
        ("Server returned non-2xx status code: 403 Forbidden", AccessDenied, 2),
        ("… status code: 404 Not Found: NoSuchBucket", ObjectNotFound, 3),
        ("… status code: 405 Method Not Allowed", SourceError, 2),
        ("client error (Connect): tcp connect error: Connection refused", StoreError, 3),
        ("dns error: failed to lookup address information", StoreError, 3),
    ],
)
def test_what_http_said_decides(text: str, kind: type[PenstockError], exit_code: int) -> None:
    error = translate(GenericError(text), "s3://bucket")
    assert type(error) is kind
    assert error.exit_code == exit_code
    assert str(error).startswith("s3://bucket: ")


def test_signatures_are_not_repeated() -> None:
    text = "Error performing GET http://host/key?X-Amz-Signature=abc123 in 3ms - status code: 403"
    assert "abc123" not in str(translate(GenericError(text), "s3://bucket"))


def test_of_an_answer_in_xml_its_code_is_repeated() -> None:
    text = (
        'Server returned non-2xx status code: 403 Forbidden: <?xml version="1.0" encoding="UTF-8"?>'
        "\n<Error><Code>InvalidAccessKeyId</Code><Message>none</Message></Error>"
    )
    said = str(translate(GenericError(text), "s3://bucket"))
    assert said.endswith("403 Forbidden: InvalidAccessKeyId)")
