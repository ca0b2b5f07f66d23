"""Writing to S3 over our own client: whole objects, objects in parts, deletions.

Like reading: answers are bounded, and redirects are followed on the same host only.

Threading: any thread. The parts of one object are sent by a small thread pool.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from xml.sax.saxutils import escape

from penstock.errors import ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.metrics import OK, Counters
from penstock.store import Chunks
from penstock.store.etags import PART_BYTES, part_bytes
from penstock.store.http import ProtocolError
from penstock.store.s3listing import MAX_PAGE_BYTES, REPEATS_HINT, children_of
from penstock.store.s3objects import S3Objects, failure
from penstock.store.sigv4 import canonical_query
from penstock.store.versions import version_of
from penstock.store.xmlbody import Child

# Parts of one object in flight at once; each is held in memory.
_PARTS_AT_ONCE = 4
_MAX_ANSWER_BYTES = 1 << 20
_UPLOADS_FACTS = ("IsTruncated", "NextKeyMarker", "NextUploadIdMarker")


class S3Uploads:
    def __init__(self, objects: S3Objects, counters: Counters) -> None:
        self._objects = objects
        self._counters = counters

    def put_file(self, where: str, key: str, chunks: Chunks, size_bytes: int) -> str:
        """See Store.put_file."""
        parts = _split_into_parts(chunks, size_bytes, where)
        if size_bytes <= PART_BYTES:
            etag = self._ask(where, key, "PUT", {}, b"".join(parts)).get("etag")
        else:
            self._put_parts(where, key, parts)
            etag = None
        self._counters.add("store_requests", label="put", outcome=OK)
        if etag:
            return version_of(etag, 0, size_bytes)
        # A store may lose a part when it joins them.
        written = self._ask(where, key, "HEAD", {})
        if (length := written.get("content-length")) != str(size_bytes):
            raise StoreError(
                f"{where}: the store has {length} of {size_bytes} bytes", kind="wrong_length"
            )
        if not (etag := written.get("etag")):
            raise StoreError(f"{where}: the answer has no ETag", kind="no_version")
        return version_of(etag, 0, size_bytes)

    def delete(self, where: str, key: str) -> None:
        with suppress(ObjectNotFound):
            self._ask(where, key, "DELETE", {})
        self._counters.add("store_requests", label="delete", outcome=OK)

    def abort_uploads(self, where: str, key: str) -> None:
        """Abort the unfinished uploads of exactly this key."""
        query = {"uploads": "", "prefix": key}
        behind = ("", "")
        while True:
            left: list[str] = []
            facts: dict[str, str] = {}
            try:
                for child in self._children(
                    where, "", "GET", query, "ListMultipartUploadsResult", most=MAX_PAGE_BYTES
                ):
                    if child.name in _UPLOADS_FACTS:
                        facts[child.name] = child.text
                    elif child.name == "Upload" and child.fields.get("Key") == key:
                        left.append(child.fields.get("UploadId", ""))
            except ObjectNotFound:
                return  # rclone's answer for a bucket without uploads
            for upload in filter(None, left):  # without an id, the object itself would be deleted
                self._abort(where, key, upload)
            # The uploads of this key come before those of longer keys.
            if facts.get("IsTruncated") != "true" or facts.get("NextKeyMarker") != key:
                return
            before, behind = behind, (key, facts.get("NextUploadIdMarker", ""))
            if behind <= before:
                raise SourceError(
                    f"{where}: its listing of uploads repeats itself", hint=REPEATS_HINT
                )
            query |= {"key-marker": key, "upload-id-marker": behind[1]}

    # -- in parts ---------------------------------------------------------------------------

    def _put_parts(self, where: str, key: str, parts: Iterator[bytes]) -> None:
        begun = self._children(where, key, "POST", {"uploads": ""}, "InitiateMultipartUploadResult")
        upload = {child.name: child.text for child in begun}.get("UploadId")
        if not upload:  # without an id, a part would overwrite the object
            raise StoreError(f"{where}: the answer does not name the upload", kind="other")
        try:
            etags = self._send_parts(where, key, upload, parts)
            listed = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
                for number, etag in enumerate(etags, 1)
            )
            for _ in self._children(
                where,
                key,
                "POST",
                {"uploadId": upload},
                "CompleteMultipartUploadResult",
                f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode(),
            ):
                pass  # an answer of status 200 may still be an error
        except BaseException:
            with suppress(PenstockError):  # the first error is reported
                self._abort(where, key, upload)
            raise

    def _send_parts(self, where: str, key: str, upload: str, parts: Iterator[bytes]) -> list[str]:
        def send(number: int, part: bytes) -> str:
            query = {"partNumber": str(number), "uploadId": upload}
            return self._ask(where, key, "PUT", query, part).get("etag", "")

        sent: list[Future[str]] = []
        with ThreadPoolExecutor(_PARTS_AT_ONCE, "upload") as pool:
            for number, part in enumerate(parts, 1):
                sent.append(pool.submit(send, number, part))
                if number >= _PARTS_AT_ONCE:
                    sent[number - _PARTS_AT_ONCE].result()  # bounds the parts in memory
            return [one.result() for one in sent]

    def _abort(self, where: str, key: str, upload: str) -> None:
        with suppress(ObjectNotFound):
            self._ask(where, key, "DELETE", {"uploadId": upload})

    # -- requests ---------------------------------------------------------------------------

    def _ask(
        self, where: str, key: str, method: str, query: dict[str, str], body: bytes = b""
    ) -> dict[str, str]:
        """Return the headers of the answer."""
        path, text = self._objects.path(key), canonical_query(query)
        try:
            with self._objects.ask(where, path, text, method=method, body=body) as response:
                response.read_text(_MAX_ANSWER_BYTES)
                return response.headers
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error

    def _children(
        self,
        where: str,
        key: str,
        method: str,
        query: dict[str, str],
        root: str,
        body: bytes = b"",
        most: int = _MAX_ANSWER_BYTES,
    ) -> Iterator[Child]:
        """Send a request, for the bucket if `key` is empty, and yield the children of the answer.

        The request is sent when the first child is taken.
        """
        path = self._objects.path(key) if key else self._objects.root or "/"
        text = canonical_query(query)
        try:
            with self._objects.ask(where, path, text, method=method, body=body) as response:
                yield from children_of(response.pieces(most), where, root)
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error


def _split_into_parts(chunks: Chunks, size_bytes: int, where: str) -> Iterator[bytes]:
    """Yield the bytes in pieces of one part each; raise if their number is not `size_bytes`."""
    part, came, most = bytearray(), 0, part_bytes(size_bytes)
    for chunk in chunks():
        rest = memoryview(chunk).cast("B")
        came += len(rest)
        while len(part) + len(rest) > most:
            left = most - len(part)
            part += rest[:left]
            rest = rest[left:]
            yield bytes(part)
            part.clear()
        part += rest
    if came != size_bytes:
        raise StoreError(f"{where}: read {came} of {size_bytes} bytes", kind="wrong_length")
    yield bytes(part)
