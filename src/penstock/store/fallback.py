"""What obstore cannot do of S3, through botocore.

Exact listings: obstore strips leading and trailing slashes and ends a whole listing at a key
such as `a//b`. botocore shows every key as it is, at 55 us of CPU a key against 5, so it lists
only where obstore cannot, and checks what it said. Every page must be one of a listing, and say
how it goes on. Keys come URL-encoded: control characters and bytes that are not
UTF-8 pass.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from penstock.errors import ObjectNotFound, SourceError, StoreError
from penstock.store import Level, ObjectInfo
from penstock.store.secrets import redact
from penstock.store.translate import translate_status
from penstock.store.versions import version_of

_HINT = "check --endpoint: it must be the address of the storage itself"
_PREFIXES = "CommonPrefixes"
_STATUS = "StatusThatCame"  # botocore makes a 500 of every 200 that it cannot parse


class S3Fallback:
    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._answered = False
        client.meta.events.register("response-received.s3", _keep_status)

    def has_leading_slash(self) -> bool:
        """Are there keys that start with a slash? One request."""
        answer = self._page(Prefix="/", MaxKeys=1)
        # rclone's server takes `/` for "everything", and answers with ordinary keys.
        return any(info.key.startswith("/") for info in _infos(answer))

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        for answer in self._pages(**_where(prefix, after)):
            yield _infos(answer)

    def list_some(self, prefix: str, after: str, most: int) -> list[ObjectInfo]:
        """The first keys behind this one. One request."""
        return _infos(self._page(MaxKeys=most, **_where(prefix, after)))

    def list_level(self, prefix: str) -> Iterator[Level]:
        """Page by page; its prefixes end in the slash that makes them such."""
        for answer in self._pages(Delimiter="/", **_where(prefix)):
            prefixes = [_decoded(found["Prefix"], answer) for found in answer.get(_PREFIXES, ())]
            yield Level(_infos(answer), prefixes)

    def _pages(self, **arguments: Any) -> Iterator[dict[str, Any]]:
        while True:
            answer = self._page(**arguments)
            yield answer
            if not answer.get("IsTruncated"):
                return
            token = answer.get("NextContinuationToken")
            if not token:
                raise SourceError(
                    f"s3://{self._bucket}: a listing that cannot be understood: there is more of "
                    "it, and no word of where",
                    hint=_HINT,
                )
            arguments["ContinuationToken"] = token

    def _page(self, **arguments: Any) -> dict[str, Any]:
        answer = self._call(self._client.list_objects_v2, EncodingType="url", **arguments)
        if "Name" not in answer and "IsTruncated" not in answer:
            # Any well-formed page parses as an empty listing; a listing says of which bucket.
            raise self._not_s3()
        return answer

    def abort_uploads(self, key: str) -> None:
        """Those of exactly this key that were begun and not ended."""
        try:
            answer = self._call(self._client.list_multipart_uploads, Prefix=key)
        except ObjectNotFound:
            return  # rclone's server says so of a bucket without any
        for upload in answer.get("Uploads", ()):
            if upload["Key"] == key:
                self._call(
                    self._client.abort_multipart_upload, Key=key, UploadId=upload["UploadId"]
                )

    def _not_s3(self) -> SourceError:
        return SourceError(
            f"s3://{self._bucket}: the endpoint does not answer as an object store does",
            hint=_HINT,
        )

    def _call(self, verb: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        try:
            answer = verb(Bucket=self._bucket, **arguments)
        except ClientError as error:
            response: dict[str, Any] = error.response
            code: str = response.get("Error", {}).get("Code", "")
            metadata = response.get("ResponseMetadata", {})
            # What is no XML, or begins as such and ends as something else.
            if code == "500" and (metadata.get(_STATUS) == 200 or not self._answered):
                raise self._not_s3() from error
            status = metadata.get("HTTPStatusCode", 0)
            raise translate_status(status, code, f"s3://{self._bucket}", str(error)) from error
        except BotoCoreError as error:
            raise self._failed(error, "other") from error
        self._answered = True
        return answer

    def _failed(self, error: BotoCoreError, otherwise: str) -> StoreError:
        kind = next((kind for known, kind in _KINDS if isinstance(error, known)), otherwise)
        return StoreError(redact(f"s3://{self._bucket}: {error}"), kind=kind)


_KINDS: tuple[tuple[type[BotoCoreError], str], ...] = (
    (ConnectTimeoutError, "timeout"),
    (ReadTimeoutError, "timeout"),
    (ConnectionClosedError, "reset"),
    (EndpointConnectionError, "refused"),
)


def _keep_status(
    parsed_response: dict[str, Any] | None, response_dict: dict[str, Any] | None, **_: Any
) -> None:
    if parsed_response is not None and response_dict is not None:
        metadata = parsed_response.setdefault("ResponseMetadata", {})
        metadata[_STATUS] = response_dict["status_code"]


def _where(prefix: str, after: str = "") -> dict[str, str]:
    below = {"Prefix": f"{prefix}/" if prefix else ""}
    return below | {"StartAfter": after} if after else below


def _infos(answer: dict[str, Any]) -> list[ObjectInfo]:
    return [_info(found, answer) for found in answer.get("Contents", ())]


def _info(found: dict[str, Any], answer: dict[str, Any]) -> ObjectInfo:
    modified_s: float = found["LastModified"].timestamp()
    return ObjectInfo(
        _decoded(found["Key"], answer),
        found["Size"],
        int(modified_s) * 1_000_000_000,
        version_of(found.get("ETag"), modified_s, found["Size"]),
    )


def _decoded(name: str, answer: dict[str, Any]) -> str:
    # Some servers ignore encoding-type; then the keys are as they are.
    if answer.get("EncodingType") != "url":
        return name
    return unquote(name.replace("+", " "), errors="surrogateescape")
