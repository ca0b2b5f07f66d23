"""Opens the store of a source: chooses its endpoint, addressing style and time limits."""

import ipaddress
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from penstock.errors import OptionError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.credentials import ENVIRONMENT, Keys, S3Credentials, first_set
from penstock.store.etags import BodyCheck, is_verified
from penstock.store.local import LocalStore
from penstock.store.redaction import redact, remember_environment
from penstock.store.remote import RemoteStore
from penstock.store.s3headers import headers_of_environment
from penstock.store.s3listing import S3Listing
from penstock.store.s3objects import Limits, open_s3_objects, open_web_objects
from penstock.store.s3uploads import S3Uploads
from penstock.store.source import Source, SourcePrefix
from penstock.store.translate import translate

if TYPE_CHECKING:
    from obstore.store import AzureCredential, ClientConfig, RetryConfig, S3Config

log = logging.getLogger(__name__)

# None: penstock.store.retry retries and counts. Two layers of retries multiply.
_RETRY: "RetryConfig" = {"max_retries": 0, "retry_timeout": timedelta(seconds=20)}

# One attempt: to connect, and between two pieces of an answer.
_CONNECT_S = 5.0
_IDLE_S = 30.0
DEFAULT_DEADLINE_S = 60.0
_AWS = "https://s3.{region}.amazonaws.com"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    manifest: Path | None = None
    deadline_s: float = DEFAULT_DEADLINE_S  # no attempt lasts longer
    verify: str = "auto"  # bodies against their ETag: see penstock.store.etags
    keys: Keys | None = None  # None: those of the environment
    path_style: bool | None = None  # the bucket in the path, or in the host's name; None: as usual
    # Where in the bucket a JuiceFS volume would be, which the mount must not show as it is.
    juicefs: str | None = None


def open_store(source: Source, options: StoreOptions, counters: Counters) -> Store:
    """Open a store without sending a request."""
    remember_environment()
    if options.keys is not None:
        options.keys.remember()
    if options.manifest is not None and source.scheme not in ("http", "https"):
        raise OptionError(
            f"--manifest goes with https:// sources, not with {source.scheme}://",
            hint="object stores are listed by themselves",
        )
    if source.scheme == "file":
        if options.endpoint or options.region or options.anonymous:
            raise OptionError("--endpoint, --region and --anonymous mean nothing for file://")
        return LocalStore(source.prefix, counters)
    openers: Mapping[str, Callable[[Source, StoreOptions, Counters], Store]] = {
        "gs": _open_gs,
        "az": _open_az,
        "http": _open_http,
        "https": _open_http,
    }
    try:
        return openers.get(source.scheme, _open_s3)(source, options, counters)
    except (BaseError, ValueError) as error:
        if isinstance(error, BaseError):
            raise translate(error, str(source)) from error
        raise OptionError(redact(f"{source}: {error}")) from error


# -- S3 and compatible stores ----------------------------------------------------------------


def _open_s3(source: Source, options: StoreOptions, counters: Counters) -> Store:
    credentials = S3Credentials(source, options.anonymous, options.keys)
    headers = headers_of_environment(os.environ)
    endpoint = _with_scheme(
        options.endpoint or first_set(ENVIRONMENT[source.scheme][2]) or credentials.endpoint
    )
    region = options.region or first_set(("AWS_REGION", "AWS_DEFAULT_REGION"))
    virtual_hosted = False
    if source.scheme == "oss":
        # OSS refuses path-style requests; its S3 endpoint takes the bucket in the host's name.
        endpoint = endpoint or (
            f"https://oss-{region.removeprefix('oss-')}.aliyuncs.com" if region else None
        )
        if endpoint is None:
            raise OptionError(
                f"{source}: OSS needs an endpoint", hint="--endpoint oss-cn-hangzhou.aliyuncs.com"
            )
        virtual_hosted = not is_address(endpoint)
        region = region or "oss"
    elif source.scheme == "bos":
        region = region or "bj"
        endpoint = endpoint or f"https://s3.{region}.bcebos.com"
    if options.path_style is not None:
        virtual_hosted = not options.path_style
    config: S3Config = {"virtual_hosted_style_request": virtual_hosted}
    if endpoint is not None:
        # With its own endpoint, obstore takes the host as it is: the bucket's name goes in here.
        host = endpoint.replace("://", f"://{source.bucket}.", 1) if virtual_hosted else endpoint
        config["endpoint"] = host
    config["region"] = region or credentials.region or "us-east-1"
    if options.anonymous:
        config["skip_signature"] = True
    store = S3Store(
        source.bucket,
        config=config,
        client_options=_client(endpoint, options.deadline_s),
        retry_config=_RETRY,
        credential_provider=None if options.anonymous else credentials,
    )
    identity = f"{source}?endpoint={endpoint}" if endpoint else str(source)
    check = BodyCheck(counters) if is_verified(options.verify, identity) else None
    if source.bucket.endswith("--x-s3"):
        if options.verify == "always":
            log.warning("%s: not verified: ETags of directory buckets are not MD5s", source)
        check = None
    objects = open_s3_objects(
        config.get("endpoint") or _AWS.format(region=config["region"]),
        source.bucket,
        virtual_hosted=virtual_hosted and endpoint is not None,
        region=config["region"],
        credentials=None if options.anonymous else credentials,
        limits=_limits(options.deadline_s),
        check=check,
        region_endpoint=_AWS if endpoint is None else None,
        extra=headers,
    )
    listing = None
    if objects is not None:
        names = SourcePrefix(identity, source.prefix)
        listing = S3Listing(objects, names, counters, in_order=endpoint is None)
    return RemoteStore(
        store,
        identity=identity,
        prefix=source.prefix,
        counters=counters,
        ordered=not source.bucket.endswith("--x-s3"),  # directory buckets list in no order
        objects=objects,
        listing=listing,
        uploads=None if objects is None else S3Uploads(objects, counters),
        check=check,
    )


# -- the others ---------------------------------------------------------------------------


def _open_gs(source: Source, options: StoreOptions, counters: Counters) -> Store:
    config: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    endpoint = _with_scheme(options.endpoint)
    if endpoint:
        config["base_url"] = endpoint
    if options.keys is not None and options.keys.service_account_json:
        config["service_account_key"] = options.keys.service_account_json
    client = _client(options.endpoint, options.deadline_s)
    store = GCSStore(source.bucket, client_options=client, retry_config=_RETRY, **config)
    identity = f"{source}?endpoint={endpoint}" if endpoint else str(source)
    return RemoteStore(store, identity=identity, prefix=source.prefix, counters=counters)


def _open_az(source: Source, options: StoreOptions, counters: Counters) -> Store:
    config: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    if options.endpoint:
        config["endpoint"] = _with_scheme(options.endpoint)
    if (keys := options.keys) is not None:
        if keys.account_name:
            config["account_name"] = keys.account_name
        if keys.account_key or keys.sas_token:
            config["credential_provider"] = lambda: _azure_credential(keys)
    client = _client(options.endpoint, options.deadline_s)
    store = AzureStore(source.bucket, client_options=client, retry_config=_RETRY, **config)
    account = (
        (keys.account_name if keys is not None else None)
        or first_set(("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"))
        or options.endpoint
    )
    return RemoteStore(
        store, identity=f"{source}?account={account}", prefix=source.prefix, counters=counters
    )


def _azure_credential(keys: Keys) -> "AzureCredential":
    """Return what obstore signs with. As settings, an account key in the environment would take
    precedence over a token."""
    if keys.account_key:
        return {"access_key": keys.account_key, "expires_at": None}
    assert keys.sas_token is not None
    return {"sas_token": keys.sas_token.lstrip("?"), "expires_at": None}


def _open_http(source: Source, options: StoreOptions, counters: Counters) -> Store:
    # The prefix is not part of it: obstore drops the last segment of an address without a slash.
    url = f"{source.scheme}://{source.bucket}"
    client = _client(url, options.deadline_s)
    identity = str(source)
    check = BodyCheck(counters) if is_verified(options.verify, identity) else None
    objects = open_web_objects(url, _limits(options.deadline_s), check)
    from penstock.store.weblisting import ManifestListing, WebListing  # 20 ms: not for every store

    listing = None
    if options.manifest is not None:
        listing = ManifestListing(options.manifest)
    elif objects is not None:
        listing = WebListing(objects, SourcePrefix(identity, source.prefix), counters)
    return RemoteStore(
        HTTPStore.from_url(url, client_options=client, retry_config=_RETRY),
        identity=identity,
        prefix=source.prefix,
        counters=counters,
        ordered=False,
        objects=objects,
        listing=listing,
        check=check,
    )


def _client(endpoint: str | None, deadline_s: float) -> "ClientConfig":
    return {
        # Plain HTTP only where the user wrote it.
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, deadline_s)),
        "read_timeout": timedelta(seconds=_idle_s(deadline_s)),
        # After the deadline no reader waits for the answer.
        "timeout": timedelta(seconds=deadline_s),
    }


def _limits(deadline_s: float) -> Limits:
    return Limits(min(_CONNECT_S, deadline_s), _idle_s(deadline_s), deadline_s)


def _idle_s(deadline_s: float) -> float:
    """Return a limit that leaves time for two more attempts when a body stops in the middle."""
    return min(_IDLE_S, deadline_s / 3)


def _with_scheme(endpoint: str | None) -> str | None:
    if not endpoint:
        return None
    url = endpoint
    if "://" not in endpoint:
        url = f"http://{endpoint}" if is_local(f"http://{endpoint}") else f"https://{endpoint}"
    hint = "write it like https://oss-cn-hangzhou.aliyuncs.com or http://127.0.0.1:9000"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0) and not set(url) & set(" \t\n<>")
    except ValueError:
        valid, parts = False, None
    if parts is not None and "@" in parts.netloc:
        raise OptionError(
            "--endpoint: credentials do not belong in an address",
            hint="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; every user sees the address",
        )
    if not valid:
        raise OptionError(f"--endpoint {endpoint!r} is not an address", hint=hint)
    return url.rstrip("/")


def is_address(endpoint: str) -> bool:
    """Return whether no name can stand before an endpoint's host: for an address, and localhost."""
    host = urlsplit(endpoint).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def is_local(endpoint: str) -> bool:
    """Return whether the endpoint is on this machine."""
    return urlsplit(endpoint).hostname in ("127.0.0.1", "localhost", "::1")
