"""Secrets at rest: sealed with a key that only this user can read.

Whoever can read the key can open what is sealed; that is root, and the user whose keys they are.
What it keeps out is every copy: a backup of the state, a support bundle, a file mailed around.
"""

import json
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from penstock.errors import UsageError


class Box:
    def __init__(self, key_file: Path) -> None:
        self._file = key_file
        self._fernet: Fernet | None = None

    def seal(self, values: dict[str, str]) -> bytes | None:
        """None for nothing: most resources have no secrets."""
        return self._key(make=True).encrypt(json.dumps(values).encode()) if values else None

    def open(self, sealed: bytes | None) -> dict[str, str]:
        if sealed is None:
            return {}
        try:
            try:
                text = self._key(make=False).decrypt(sealed)
            except InvalidToken:
                self._fernet = None  # another key may have been made while we lived
                text = self._key(make=False).decrypt(sealed)
            return json.loads(text)
        except InvalidToken as error:
            raise UsageError(
                f"{self._file} is not the key that the secrets were sealed with",
                hint="put the old key back, or apply the manifests with their secrets again",
            ) from error

    def _key(self, *, make: bool) -> Fernet:
        if self._fernet is None:
            self._fernet = Fernet(self._read(make=make))
        return self._fernet

    def _read(self, *, make: bool) -> bytes:
        try:
            return self._file.read_bytes()
        except FileNotFoundError as error:
            if not make:
                raise UsageError(
                    f"{self._file} is gone: the secrets cannot be opened",
                    hint="apply the manifests with their secrets again",
                ) from error
        return self._make()

    def _make(self) -> bytes:
        """Whole or not at all, and of two who make one at once the first one's is taken."""
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, Fernet.generate_key())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(fresh, self._file)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        return self._file.read_bytes()
