"""Keys that are handed over with a source, instead of those of the environment.

They travel in memory and over private sockets only, and are hidden wherever text is made.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, cast

from penstock.store.secrets import remember

# Of a key file in JSON only this is secret; the whole of it is never repeated as one text.
_SECRET_OF_AN_ACCOUNT = ("private_key", "private_key_id")


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """What one source is opened with; each store takes those that it knows."""

    access_key_id: str | None = None  # s3, oss, bos
    secret_access_key: str | None = None
    session_token: str | None = None
    account_name: str | None = None  # az
    account_key: str | None = None
    sas_token: str | None = None
    service_account_json: str | None = None  # gs: what the key file holds

    def __repr__(self) -> str:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return f"Keys({', '.join(f'{name}=…' for name in given)})"

    def remember(self) -> None:
        """From now on they are taken out of every error and log line of this process."""
        remember_keys({field.name: getattr(self, field.name) for field in fields(self)})


def remember_settings(settings: dict[str, Any]) -> None:
    """The same for settings as JSON, for a process that does not look inside otherwise."""
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
    """Its signature by itself: a library repeats the query in an order of its own."""
    pairs = (pair.partition("=") for pair in sas_token.lstrip("?").split("&"))
    return [value for name, _, value in pairs if name == "sig"]


def _secrets_of_account(text: str) -> list[str]:
    try:
        account = cast(dict[str, Any], json.loads(text))
        return [str(account[name]) for name in _SECRET_OF_AN_ACCOUNT if name in account]
    except (ValueError, TypeError):
        return []  # whoever opens the store will say that it is none
