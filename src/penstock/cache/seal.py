"""How a block is written into the shared tier: its names, and the values that carry it. Pure.

memcached limits the size of an item, so a block is cut into pieces of `PIECE_BYTES`; each piece is
one value. A value carries its length and a checksum, or it is sealed with AES-GCM. Both cover the
name of the value as well, so a value under another name is as wrong as a flipped bit.

    plain     magic 4 · length 4 · xxh3 of the bytes, seeded with the name 8 · bytes
    sealed    magic 4 · nonce 12 · bytes, encrypted · tag 16

The nonce of a sealed value is random, which is safe for 2**32 values under one key: at 110 KiB each
about 470 TB.
"""

import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import xxhash
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from typing_extensions import Buffer

from penstock.cache.identity import Block
from penstock.errors import OptionError

# memcached stores items above 512 KiB in several chunks anyway, and its default limit is 1 MiB.
PIECE_BYTES = 512 * 1024
_PLAIN, _SEALED = b"PSt1", b"PSs1"
_PLAIN_HEAD = struct.Struct("<4sIQ")
_NONCE_BYTES, _TAG_BYTES = 12, 16
_LEAST_KEY_BYTES = 16
_MAX_KEY_BYTES = 64 * 1024


class Packing:
    """Writes and reads values with a checksum, for a network that is trusted."""

    head_bytes = _PLAIN_HEAD.size
    tail_bytes = 0

    def value_bytes(self, length: int) -> int:
        """Return the size of the value of a piece."""
        return self.head_bytes + length + self.tail_bytes

    def name(self, block: Block, piece: int) -> bytes:
        """Return the key under which memcached has a piece of the block."""
        return b"ps:%s:%x:%x" % (block.digest.hex().encode(), block.number, piece)

    def pack(self, name: bytes, piece: memoryview) -> Sequence[Buffer]:
        """Return the parts of the value."""
        return _PLAIN_HEAD.pack(_PLAIN, len(piece), _checksum(name, piece)), piece

    def unpack(self, name: bytes, head: memoryview, body: memoryview) -> Buffer | None:
        """Return the bytes of a piece; None if they are not what was written.

        `head` is the first `head_bytes` of the value, `body` the rest.
        """
        return (
            body
            if head.tobytes() == _PLAIN_HEAD.pack(_PLAIN, len(body), _checksum(name, body))
            else None
        )


class Sealing(Packing):
    """Writes and reads sealed values: who has no key learns nothing, and can only cause misses."""

    head_bytes = len(_SEALED) + _NONCE_BYTES
    tail_bytes = _TAG_BYTES

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(_derive(secret, b"penstock values"))
        self._names_key = _derive(secret, b"penstock names")

    def name(self, block: Block, piece: int) -> bytes:
        # Hashed with the key: otherwise somebody who knows a bucket could look up what is read.
        text = b"%s:%x:%x" % (block.digest, block.number, piece)
        hashed = hashlib.blake2b(text, digest_size=20, key=self._names_key)
        return b"pss:" + hashed.hexdigest().encode()

    def pack(self, name: bytes, piece: memoryview) -> Sequence[Buffer]:
        nonce = os.urandom(_NONCE_BYTES)
        return _SEALED, nonce, self._cipher.encrypt(nonce, piece, _SEALED + name)

    def unpack(self, name: bytes, head: memoryview, body: memoryview) -> Buffer | None:
        if head[: len(_SEALED)].tobytes() != _SEALED:
            return None
        try:
            return self._cipher.decrypt(head[len(_SEALED) :], body, _SEALED + name)
        except InvalidTag:
            return None


def open_packing(key_file: Path | None) -> Packing:
    """Return how values are written; raise OptionError for a key file that cannot be used."""
    if key_file is None:
        return Packing()
    hint = f"make one with: head -c 32 /dev/urandom | base64 > {key_file}"
    try:
        with key_file.open("rb") as file:
            secret = file.read(_MAX_KEY_BYTES).strip()
    except OSError as error:
        raise OptionError(f"--shared-key {key_file}: {error.strerror}", hint=hint) from error
    if len(secret) < _LEAST_KEY_BYTES:
        raise OptionError(
            f"--shared-key {key_file}: {len(secret)} bytes are too few for a key", hint=hint
        )
    return Sealing(secret)


def piece_lengths(length: int) -> list[int]:
    """Return the lengths of the pieces of a block."""
    whole, rest = divmod(length, PIECE_BYTES)
    return [PIECE_BYTES] * whole + [rest] * (rest > 0 or not whole)


def _checksum(name: bytes, piece: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(piece, seed=xxhash.xxh3_64_intdigest(name))


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=32, person=purpose).digest()
