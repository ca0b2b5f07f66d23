"""Credentials: those given with a source, and those of the environment, profiles and roles.

Given keys travel in memory and over private sockets only, never on a command line, and are redacted
in every error and log line.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import AccessDenied
from penstock.store.redaction import redact, remember
from penstock.store.source import Source

if TYPE_CHECKING:
    from obstore.store import S3Credential

# Of a key file in JSON only these are secret; the file is never repeated as one text.
_SECRET_FIELDS = ("private_key", "private_key_id")


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """Keys given with a source, instead of those of the environment; each store uses its own."""

    access_key_id: str | None = None  # s3, oss, bos
    secret_access_key: str | None = None
    session_token: str | None = None
    account_name: str | None = None  # az
    account_key: str | None = None
    sas_token: str | None = None
    service_account_json: str | None = None  # gs: the contents of the key file

    def __repr__(self) -> str:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return f"Keys({', '.join(f'{name}=…' for name in given)})"

    def remember(self) -> None:
        """Redact them from now on in every error and log line of this process."""
        remember_keys({field.name: getattr(self, field.name) for field in fields(self)})


def remember_settings(settings: dict[str, Any]) -> None:
    """Redact the keys in settings as JSON, in a process that does not parse them otherwise."""
    for part in cast(list[dict[str, Any]], settings.get("parts", [])):
        remember_keys(part.get("store", {}).get("keys") or {})


def remember_keys(keys: dict[str, Any]) -> None:
    for name, value in keys.items():
        # An account's name is part of addresses, and is no secret.
        if not isinstance(value, str) or name == "account_name":
            continue
        remember(value)
        if name == "sas_token":
            remember(*_values(value))
        elif name == "service_account_json":
            remember(*_secrets_of_account(value))


def _values(sas_token: str) -> list[str]:
    """Return the token's signature: a library may repeat the query in another order."""
    pairs = (pair.partition("=") for pair in sas_token.lstrip("?").split("&"))
    return [value for name, _, value in pairs if name == "sig"]


def _secrets_of_account(text: str) -> list[str]:
    try:
        account = cast(dict[str, Any], json.loads(text))
        return [str(account[name]) for name in _SECRET_FIELDS if name in account]
    except (ValueError, TypeError):
        return []  # opening the store reports that it is not a key file


# Where each S3-compatible store keeps its keys and its endpoint, besides AWS's own variables.
ENVIRONMENT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
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


class S3Credentials:
    """Provides obstore with fresh credentials: given keys; else variables of the environment, then
    what botocore finds (profiles, SSO, web identity, credential processes, container and instance
    roles).

    obstore's own lookup of an instance role retries for minutes on machines that have none.
    """

    def __init__(self, source: Source, anonymous: bool, keys: Keys | None = None) -> None:
        """`keys`: use only these."""
        key_names, secret_names, _ = ENVIRONMENT[source.scheme]
        self._key = first_set((*key_names, "AWS_ACCESS_KEY_ID"))
        self._secret = first_set((*secret_names, "AWS_SECRET_ACCESS_KEY"))
        self._token = os.environ.get("AWS_SESSION_TOKEN")
        self._session: Any = None
        if keys is not None and (keys.access_key_id or keys.secret_access_key):
            self._use(keys, source)
            return
        if anonymous or (self._key and self._secret and not os.environ.get("AWS_PROFILE")):
            return
        import botocore.exceptions
        import botocore.session

        try:
            self._session = botocore.session.get_session()
            found = self._session.get_credentials()
        except botocore.exceptions.BotoCoreError as error:
            text = redact(f"{source}: {error}")
            raise AccessDenied(text, hint="check AWS_PROFILE") from error
        if found is None:
            if (path := _unreadable_file(self._session)) is not None:
                raise AccessDenied(
                    f"{source}: {path}: Permission denied",
                    hint="it must belong to the user who mounts; root of a container may read "
                    "only its own files, too",
                )
            raise AccessDenied(
                f"{source}: no credentials found",
                hint="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
                "a public bucket needs --anonymous",
            )

    def _use(self, keys: Keys, source: Source) -> None:
        self._key, self._secret = keys.access_key_id, keys.secret_access_key
        self._token = keys.session_token
        if not (self._key and self._secret):
            missing = "access key ID" if not self._key else "secret access key"
            raise AccessDenied(f"{source}: its {missing} is missing", hint="give both")

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
                "token": self._token,
                "expires_at": None,
            }
        import botocore.exceptions

        try:
            frozen = self._session.get_credentials().get_frozen_credentials()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise AccessDenied(
                redact(f"the credentials cannot be refreshed: {error}"), hint="check AWS_PROFILE"
            ) from error
        remember(frozen.access_key, frozen.secret_key, frozen.token)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # botocore refreshes them in time; asking it again is cheap.
            "expires_at": datetime.now(UTC) + timedelta(minutes=5),
        }


def _unreadable_file(session: Any) -> str | None:
    """Return a file of AWS that is there and cannot be read: botocore takes it for missing."""
    for variable in ("credentials_file", "config_file"):
        path = os.path.expanduser(session.get_config_variable(variable))
        if os.path.exists(path) and not os.access(path, os.R_OK):
            return path
    return None


def first_set(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)
