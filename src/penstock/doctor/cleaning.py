"""Takes every secret that is known out of what leaves this machine.

A log line or a message may repeat a key in several spellings: as it is, quoted for an address or
for JSON, in base64 by itself or in the middle of something else. All of them go. Key ids too: they
open nothing, but they tell whose account it is.
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

# Shorter ones would tear ordinary words apart; where they are kept they are hidden anyway.
_SHORTEST = 4
_SHORTEST_BASE64 = 8
_SHORTEST_LINE = 12  # of a secret of several lines, as a private key is
# What a Secret may hold and is none: endpoints and buckets are what a bundle is about.
_PLACES = frozenset(("endpoint", "bucket", "region", "storage", "name", "account_name"))
_PLACE_VARIABLE = re.compile(r"_(FILE|URI|URL|PATH|ENDPOINT|SOCK)$")


class Cleaner:
    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {text for secret in secrets for text in _spellings(secret)}
        # The longest first: one may be a part of another.
        ordered = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return redact(text)

    def value(self, value: Any) -> Any:
        """The same for what will be JSON or YAML: a secret of digits may stand there as a
        number."""
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
    """Raises UsageError if they cannot be opened: then there is no telling what they are."""
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


# -- inside --------------------------------------------------------------------------------------


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
    """By itself, and as it looks behind any other bytes: three ways, by how many those are. The
    letters at both ends that also depend on its neighbours are left off."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        middle = text[(0, 2, 3)[before] :]
        if (before + len(data)) % 3:
            middle = middle[:-1]
        if len(middle) >= _SHORTEST_BASE64:
            yield middle
            yield middle.replace("+", "-").replace("/", "_")


def cleaner_for(
    state: State | None,
    settings: Iterable[MountSettings],
    environments: Iterable[Mapping[str, str]],
) -> Cleaner:
    """All that is known here: what is declared, what mounts were given, and what this process was
    started with."""
    secrets = secrets_of_environment(os.environ)
    if state is not None:
        secrets |= _opened(state)
    for one in settings:
        secrets |= secrets_of_settings(one)
    for environment in environments:
        secrets |= secrets_of_environment(environment)
    return Cleaner(secrets)


def _opened(state: State) -> set[str]:
    try:
        return secrets_of_state(state)
    except PenstockError:
        return set()  # sealed for us too: nothing of ours can have written them anywhere
