"""Remove every known secret from text that leaves this machine.

A log line may hold a key in several spellings: plain, quoted for a URL or for JSON, in base64 by
itself or inside a longer value. All of them are removed. Key ids are removed too: they open
nothing, but they identify an account.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, cast
from urllib.parse import quote, quote_plus, unquote, urlsplit

from penstock.errors import PenstockError
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.settings import MountSettings
from penstock.specs.secret_fields import names_a_secret
from penstock.store.redaction import HIDDEN, redact

# Shorter secrets would match inside ordinary words.
_SHORTEST = 4
_SHORTEST_BASE64 = 8
_SHORTEST_LINE = 12  # of a secret of several lines, as a private key is
# Values of a Secret that are not secret: a bundle needs endpoints and buckets.
_PLACES = frozenset(("endpoint", "bucket", "region", "storage", "name", "account_name"))
_PLACE_VARIABLE = re.compile(r"_(FILE|URI|URL|PATH|ENDPOINT|SOCK)$")


class Redactor:
    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {text for secret in secrets for text in _spellings(secret)}
        # The longest first: one may be part of another.
        ordered = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return redact(text)

    def value(self, value: Any) -> Any:
        """Redact a value for JSON or YAML, where a secret of digits may be a number."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value)
            return {self.text(str(key)): self.value(below) for key, below in entries.items()}
        if isinstance(value, list | tuple):
            return [self.value(below) for below in cast("list[Any]", value)]
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_secret = self._pattern is not None and self._pattern.fullmatch(str(value))
            return HIDDEN if is_secret else value
        return value


def secrets_of_state(state: State) -> set[str]:
    """Return all stored secrets. Raises UsageError if they cannot be decrypted."""
    return {secret for one in state.all() for secret in _secrets_of(state, one)}


def secrets_of_settings(settings: MountSettings) -> set[str]:
    found: set[str] = set()
    for part in settings.parts:
        if part.store.keys is not None:
            values = (
                (field.name, getattr(part.store.keys, field.name))
                for field in fields(part.store.keys)
            )
            found |= {value for name, value in values if value and name != "account_name"}
    return found


def secrets_of_environment(environment: Mapping[str, str]) -> set[str]:
    return {
        value
        for name, value in environment.items()
        if names_a_secret(name) and not _PLACE_VARIABLE.search(name)
    }


def _secrets_of(state: State, one: Stored) -> Iterator[str]:
    for pointer, value in state.secrets(one).items():
        name = pointer.rsplit("/", 1)[-1].replace("~1", "/")
        in_base64 = one.key.kind == "Secret" and pointer.startswith("/data/")
        plain = _decoded(value) if in_base64 else value
        password = urlsplit(plain).password if "://" in plain else None
        if password:
            yield unquote(password)
            yield password
        elif one.key.kind == "Secret" and name.lower().rsplit(".")[-1] in _PLACES:
            continue
        yield plain
        yield value


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value).decode("utf-8", "replace")
    except ValueError:
        return value


def _spellings(secret: str) -> Iterator[str]:
    secret = secret.strip()
    if len(secret) < _SHORTEST:
        return
    yield from (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield from _in_base64(secret.encode())
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE)


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield its base64 at each of the three offsets that it may have inside a longer value.

    Leaves out the characters at both ends that depend on the neighbouring bytes.
    """
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        middle = text[(0, 2, 3)[before] :]
        if (before + len(data)) % 3:
            middle = middle[:-1]
        if len(middle) >= _SHORTEST_BASE64:
            yield middle
            yield middle.replace("+", "-").replace("/", "_")


def redactor_for(
    state: State | None,
    settings: Iterable[MountSettings],
    environments: Iterable[Mapping[str, str]],
) -> Redactor:
    """Return a redactor of all secrets known here: stored ones, those of mounts, and those in the
    environment of this process."""
    secrets = secrets_of_environment(os.environ)
    if state is not None:
        secrets |= _readable_secrets(state)
    for one in settings:
        secrets |= secrets_of_settings(one)
    for environment in environments:
        secrets |= secrets_of_environment(environment)
    return Redactor(secrets)


def _readable_secrets(state: State) -> set[str]:
    try:
        return secrets_of_state(state)
    except PenstockError:
        return set()  # we cannot decrypt them, so no process of ours has written them anywhere
