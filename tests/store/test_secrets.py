"""Errors of the library become ours, and no key, secret or token is read in them or in a log."""

import json
import logging

import obstore.exceptions
import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError

from penstock.errors import AccessDenied, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.store.credentials import remember_settings
from penstock.store.redaction import RedactingFormatter, redact, remember, remember_environment
from penstock.store.translate import TRANSLATIONS, translate

KEY, SECRET, TOKEN = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCY", "FwoGZXIvYXdzEBYaD"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    remember_environment()


@pytest.mark.parametrize("value", [KEY, SECRET, TOKEN, "wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCY"])
@pytest.mark.parametrize("kind", [GenericError, PermissionDeniedError])
def test_credentials_echoed_by_a_server_are_not_repeated(value: str, kind: type[Exception]) -> None:
    text = f"status code: 403 Forbidden: <Error><Code>No</Code><What>{value}</What></Error>"
    error = translate(kind(text), "s3://bucket")
    assert value not in str(error)
    assert "403" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "GET http://host/key?X-Amz-Credential=AKIAOTHER/2026&X-Amz-Signature=0a1b2c failed",
        "<AWSAccessKeyId>0a1b2c</AWSAccessKeyId><StringToSign>AWS4\n0a1b2c</StringToSign>",
        "Authorization: AWS4-HMAC-SHA256 Credential=x, Signature=0a1b2c",
        "the key ASIA0A1B2C0A1B2C0A1B is unknown",
    ],
)
def test_anything_that_looks_like_a_credential_is_hidden(text: str) -> None:
    assert "0a1b2c" not in redact(text).lower()


def test_ordinary_words_are_not_hidden() -> None:
    remember("", None, "root")
    text = "s3://root-bucket/test: storage cannot be reached"
    assert redact(text) == text


def test_the_keys_of_every_cloud_in_the_settings_are_hidden() -> None:
    account = {"client_email": "robot@example.com", "private_key": "-----BEGIN-abc-KEY-----"}
    stores = [
        {"secret_key": "kept-in-a-Secret"},
        {"account_name": "trainingdata", "account_key": "QWNjb3VudEtleQ=="},
        {"account_name": "trainingdata", "sas_token": "?sv=2025-01-05&sig=c2lnbmF0dXJl%3D&sp=rl"},
        {"service_account_json": json.dumps(account)},
        {"service_account_json": "this is no JSON"},
    ]
    remember_settings({"parts": [{"store": {"keys": keys}} for keys in stores] + [{"store": {}}]})
    secrets = (
        "kept-in-a-Secret",
        "QWNjb3VudEtleQ==",
        "c2lnbmF0dXJl%3D",
        account["private_key"],
        "this is no JSON",
    )
    for secret in secrets:
        assert redact(f"trainingdata: {secret} is wrong") == "trainingdata: … is wrong"


def test_a_log_line_is_redacted_with_its_traceback() -> None:
    try:
        raise ValueError(f"signed with {SECRET}")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "with %s", (TOKEN,), (ValueError, error, None)
        )
    line = RedactingFormatter("%(message)s").format(record)
    assert "with" in line
    assert SECRET not in line
    assert TOKEN not in line


LIBRARY = [
    kind
    for kind in vars(obstore.exceptions).values()
    if isinstance(kind, type) and issubclass(kind, BaseError)
]


@pytest.mark.parametrize("kind", LIBRARY)
def test_each_library_exception_has_its_own_row(kind: type[Exception]) -> None:
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
def test_the_http_status_decides_the_error(
    text: str, kind: type[PenstockError], exit_code: int
) -> None:
    error = translate(GenericError(text), "s3://bucket")
    assert type(error) is kind
    assert error.exit_code == exit_code
    assert str(error).startswith("s3://bucket: ")


def test_only_the_code_of_an_xml_answer_is_repeated() -> None:
    text = (
        'Server returned non-2xx status code: 403 Forbidden: <?xml version="1.0" encoding="UTF-8"?>'
        "\n<Error><Code>InvalidAccessKeyId</Code><Message>none</Message></Error>"
    )
    output = str(translate(GenericError(text), "s3://bucket"))
    assert output.endswith("403 Forbidden: InvalidAccessKeyId)")
