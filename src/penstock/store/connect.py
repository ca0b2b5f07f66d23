"""From a source and its options to a store: endpoints, addressing styles, credentials.

Credentials come the way their users already have them, and never from the command line.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from penstock.errors import AccessDenied, OptionError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.local import LocalStore
from penstock.store.manifest import read_manifest
from penstock.store.remote import Fallback, RemoteStore
from penstock.store.source import Source
from penstock.store.translate import translate

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

# Retries inside one request. Short enough that a wrong endpoint is told in seconds.
_RETRY: "RetryConfig" = {
    "max_retries": 4,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=20),
}

# Where each S3-compatible store keeps its keys and its endpoint, besides AWS's own variables.
_ENVIRONMENT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "oss": (
        ("OSS_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID"),
        ("OSS_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
        ("OSS_ENDPOINT",),
    ),
    "bos": (
        ("BOS_ACCESS_KEY_ID", "BCE_ACCESS_KEY_ID"),
        ("BOS_SECRET_ACCESS_KEY", "BCE_SECRET_ACCESS_KEY"),
        ("BOS_ENDPOINT",),
    ),
    "s3": ((), (), ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    manifest: Path | None = None


def open_store(source: Source, options: StoreOptions, counters: Counters) -> Store:
    """A store that has not been asked anything yet."""
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
        raise OptionError(f"{source}: {error}") from error


# -- S3 and what speaks it ----------------------------------------------------------------


def _open_s3(source: Source, options: StoreOptions, counters: Counters) -> Store:
    credentials = _S3Credentials(source, options.anonymous)
    endpoint = _with_scheme(
        options.endpoint or _first(_ENVIRONMENT[source.scheme][2]) or credentials.endpoint
    )
    region = options.region or _first(("AWS_REGION", "AWS_DEFAULT_REGION"))
    virtual_hosted = False
    if source.scheme == "oss":
        # OSS refuses path-style requests; its S3 endpoint wants the bucket in the host's name.
        endpoint = endpoint or (
            f"https://oss-{region.removeprefix('oss-')}.aliyuncs.com" if region else None
        )
        if endpoint is None:
            raise OptionError(
                f"{source}: OSS needs an endpoint", hint="--endpoint oss-cn-hangzhou.aliyuncs.com"
            )
        virtual_hosted = not _is_local(endpoint)
        region = region or "oss"
    elif source.scheme == "bos":
        region = region or "bj"
        endpoint = endpoint or f"https://s3.{region}.bcebos.com"
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
        client_options=_client(endpoint),
        retry_config=_RETRY,
        credential_provider=None if options.anonymous else credentials,
    )
    where = f"?endpoint={endpoint}" if endpoint else ""

    @cache
    def fallback() -> Fallback:
        from penstock.store.fallback import S3Fallback  # botocore takes 0.2 s to import

        client = credentials.client(endpoint, config["region"], virtual_hosted)
        return S3Fallback(client, source.bucket)

    return RemoteStore(
        store,
        identity=f"{source}{where}",
        prefix=source.prefix,
        counters=counters,
        fallback=fallback,
    )


class _S3Credentials:
    """Hands obstore fresh credentials: plain variables first, then all that botocore knows
    (profiles, SSO, web identity, credential processes, container and instance roles).

    obstore's own lookup of an instance role retries for minutes on machines that have none.
    """

    def __init__(self, source: Source, anonymous: bool) -> None:
        key_names, secret_names, _ = _ENVIRONMENT[source.scheme]
        self._key = _first((*key_names, "AWS_ACCESS_KEY_ID"))
        self._secret = _first((*secret_names, "AWS_SECRET_ACCESS_KEY"))
        self._anonymous = anonymous
        self._session: Any = None
        if anonymous or (self._key and self._secret and not os.environ.get("AWS_PROFILE")):
            return
        import botocore.exceptions
        import botocore.session

        try:
            self._session = botocore.session.get_session()
            found = self._session.get_credentials()
        except botocore.exceptions.BotoCoreError as error:
            raise AccessDenied(f"{source}: {error}", hint="check AWS_PROFILE") from error
        if found is None:
            raise AccessDenied(
                f"{source}: no credentials found",
                hint="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
                "a public bucket needs --anonymous",
            )

    @property
    def region(self) -> str | None:
        return self._session.get_config_variable("region") if self._session else None

    @property
    def endpoint(self) -> str | None:
        """`endpoint_url` of the profile, or of the services that it names."""
        if self._session is None:
            return None
        profile: dict[str, Any] = self._session.get_scoped_config()
        services: dict[str, Any] = self._session.full_config.get("services", {})
        s3: dict[str, Any] = services.get(profile.get("services", ""), {}).get("s3", {})
        return s3.get("endpoint_url") or profile.get("endpoint_url")

    def __call__(self) -> "S3Credential":
        if self._session is None:
            return {
                "access_key_id": self._key or "",
                "secret_access_key": self._secret or "",
                "token": os.environ.get("AWS_SESSION_TOKEN"),
                "expires_at": None,
            }
        frozen = self._session.get_credentials().get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # botocore refreshes in time by itself; asking it again is cheap.
            "expires_at": datetime.now(UTC) + timedelta(minutes=5),
        }

    def client(self, endpoint: str | None, region: str, virtual_hosted: bool) -> Any:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config

        session = self._session or botocore.session.get_session()
        # A session that found its credentials itself also refreshes them.
        frozen = None if self._anonymous or self._session is not None else self()
        return session.create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint,
            aws_access_key_id=frozen and frozen["access_key_id"],
            aws_secret_access_key=frozen and frozen["secret_access_key"],
            aws_session_token=frozen and frozen.get("token"),
            config=Config(
                signature_version=UNSIGNED if self._anonymous else None,
                s3={"addressing_style": "virtual" if virtual_hosted or not endpoint else "path"},
                retries={"max_attempts": 4},
                connect_timeout=5,
                max_pool_connections=32,
            ),
        )


# -- the others ---------------------------------------------------------------------------


def _open_gs(source: Source, options: StoreOptions, counters: Counters) -> Store:
    config: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    endpoint = _with_scheme(options.endpoint)
    if endpoint:
        config["base_url"] = endpoint
    store = GCSStore(
        source.bucket, client_options=_client(options.endpoint), retry_config=_RETRY, **config
    )
    identity = f"{source}?endpoint={endpoint}" if endpoint else str(source)
    return RemoteStore(store, identity=identity, prefix=source.prefix, counters=counters)


def _open_az(source: Source, options: StoreOptions, counters: Counters) -> Store:
    config: dict[str, Any] = {"skip_signature": True} if options.anonymous else {}
    if options.endpoint:
        config["endpoint"] = _with_scheme(options.endpoint)
    store = AzureStore(
        source.bucket, client_options=_client(options.endpoint), retry_config=_RETRY, **config
    )
    account = _first(("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")) or options.endpoint
    return RemoteStore(
        store, identity=f"{source}?account={account}", prefix=source.prefix, counters=counters
    )


def _open_http(source: Source, options: StoreOptions, counters: Counters) -> Store:
    # The prefix stays ours: obstore drops the last segment of an address without a slash.
    url = f"{source.scheme}://{source.bucket}"
    manifest = options.manifest
    store = HTTPStore.from_url(url, client_options=_client(url), retry_config=_RETRY)
    return RemoteStore(
        store,
        identity=str(source),
        prefix=source.prefix,
        counters=counters,
        manifest=(lambda: read_manifest(manifest)) if manifest else None,
    )


def _client(endpoint: str | None) -> "ClientConfig":
    return {
        # Plain HTTP only where the user wrote it.
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=30),
        "timeout": timedelta(seconds=120),
    }


def _with_scheme(endpoint: str | None) -> str | None:
    if not endpoint:
        return None
    url = endpoint if "://" in endpoint else f"https://{endpoint}"
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
            hint="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; an address is seen by all",
        )
    if not valid:
        raise OptionError(f"--endpoint {endpoint!r} is no address", hint=hint)
    return url.rstrip("/")


def _is_local(endpoint: str) -> bool:
    return endpoint.split("://", 1)[1].split(":")[0] in ("127.0.0.1", "localhost")


def _first(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)
