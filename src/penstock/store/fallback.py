"""The two things of S3 that obstore cannot do, through botocore.

Exact listings: obstore strips leading and trailing slashes and ends a whole listing at a key
such as `a//b`. botocore shows every key as it is, at 55 us of CPU a key against 5, so it lists
only where obstore cannot. Keys come URL-encoded: control characters and bytes that are not
UTF-8 pass.

Servers that answer a range with status 200: rclone's S3 server sends the right bytes and the
right Content-Range, but not 206, which obstore rightly demands.
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

from penstock.errors import ObjectChanged, SourceError, StoreError
from penstock.store import ObjectInfo
from penstock.store.secrets import redact
from penstock.store.translate import translate_status


class S3Fallback:
    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._answered = False

    def has_leading_slash(self) -> bool:
        """Are there keys that start with a slash? One request."""
        answer = self._call(self._client.list_objects_v2, Prefix="/", MaxKeys=1)
        if "Name" not in answer and "IsTruncated" not in answer:
            # Any well-formed page parses as an empty listing; a listing says of which bucket.
            raise self._not_s3()
        # rclone's server takes `/` for "everything", and answers with ordinary keys.
        return any(found["Key"].startswith("/") for found in answer.get("Contents", ()))

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        arguments: dict[str, Any] = {"Prefix": f"{prefix}/" if prefix else ""}
        if after:
            arguments["StartAfter"] = after
        while True:
            answer = self._call(self._client.list_objects_v2, EncodingType="url", **arguments)
            # Some servers ignore encoding-type; then the keys are as they are.
            encoded = answer.get("EncodingType") == "url"
            yield [_info(found, encoded) for found in answer.get("Contents", [])]
            if not answer.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = answer["NextContinuationToken"]

    def get_range(self, key: str, version: str, start: int, length: int, size_bytes: int) -> bytes:
        wanted = f"bytes {start}-{start + length - 1}/{size_bytes}"
        answer = self._call(
            self._client.get_object, Key=key, Range=wanted.replace(" ", "=").split("/")[0]
        )
        if answer["ETag"].replace('"', "") != version or answer.get("ContentRange") != wanted:
            raise ObjectChanged(f"s3://{self._bucket}/{key}: rewritten while it was read")
        try:
            return answer["Body"].read()
        except BotoCoreError as error:
            raise self._failed(error, "short_body") from error

    def _not_s3(self) -> SourceError:
        return SourceError(
            f"s3://{self._bucket}: the endpoint does not answer as an object store does",
            hint="check --endpoint: it must be the address of the storage itself",
        )

    def _call(self, verb: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        try:
            answer = verb(Bucket=self._bucket, **arguments)
        except ClientError as error:
            response: dict[str, Any] = error.response
            code: str = response.get("Error", {}).get("Code", "")
            if code == "500" and not self._answered:
                raise self._not_s3() from error  # what botocore makes of a page it cannot parse
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
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


def _info(found: dict[str, Any], encoded: bool) -> ObjectInfo:
    key: str = found["Key"]
    if encoded:
        key = unquote(key.replace("+", " "), errors="surrogateescape")
    modified_ns = int(found["LastModified"].timestamp()) * 1_000_000_000
    return ObjectInfo(key, found["Size"], modified_ns, found["ETag"].replace('"', ""))
