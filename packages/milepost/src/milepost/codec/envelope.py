"""The outermost layer of everything stored: format number, flags, checksum, and around the payload zstd and AES-GCM.

    byte 0      format number, `FORMAT`
    byte 1      flags: 1 compressed (zstd), 2 sealed (AES-256-GCM); other bits must be zero
    bytes 2-5   CRC-32 (zlib's) of bytes 0 and 1 and the rest, little endian
    rest        payload; when sealed: length of the key id (1 byte), key id, nonce (12 bytes), ciphertext and tag

A payload is compressed before it is sealed.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Mapping
from typing import Any, Protocol, cast

from milepost.checksums import crc32
from milepost.errors import Corrupt, FormatTooNew, InvalidConfig, Unavailable
from milepost.places import MARK

FORMAT = 1

_HEAD = struct.Struct("<BBI")
_COMPRESSED, _SEALED = 1, 2


_OF_TENANT = re.compile(rb"(?<=\0)%(mark)b([^\0%(mark)b]+)%(mark)b" % {b"mark": MARK.encode()})
"""The beginning of a thread's name in the store, where that is a tenant's."""


class _Zstd(Protocol):
    def compress(self, data: bytes, level: int) -> bytes: ...

    def decompress(self, data: bytes) -> bytes: ...


def _find_zstd() -> _Zstd | None:
    # In the standard library since 3.14; before that the backport comes with the backends that store much.
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd  # noqa: PLC0415 - only there since 3.14
        else:
            from backports import zstd  # noqa: PLC0415 - comes with the backends that need it
    except ImportError:
        return None
    return cast("_Zstd", zstd)


_zstd = _find_zstd()


class Vault:
    """Keys for sealing what is stored.

    `keys` maps a key id (at most 255 bytes of UTF-8) to 16, 24 or 32 bytes; new bytes are sealed with `active`, the
    first one by default, and any of them opens what it sealed. Rotation is: add a key, make it active, rewrite.

    What is sealed is bound to the tenant too: to `tenant`, or, where the threads of all tenants go by the names that they
    have in the store, to the one that such a name begins with. What an earlier release sealed was not, and opens still.
    """

    def __init__(self, keys: Mapping[str, bytes], active: str | None = None, *, tenant: str | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
        except ImportError as exc:
            raise InvalidConfig(
                "encryption needs the package cryptography: pip install 'milepost[crypto]'", what="keys"
            ) from exc
        if not keys:
            raise InvalidConfig("a vault needs at least one key", what="keys")
        for name, key in keys.items():
            if len(key) not in (16, 24, 32) or not 0 < len(name.encode()) < 256:
                raise InvalidConfig(
                    f"key {name!r} has {len(key)} bytes: a key has 16, 24 or 32 bytes, and an id of 1 to 255 bytes",
                    what="keys",
                )
        self._active = active if active is not None else next(iter(keys))
        if self._active not in keys:
            raise InvalidConfig(f"the active key {self._active!r} is not among the keys {sorted(keys)}", what="active")
        self._ciphers: dict[str, Any] = {name: AESGCM(key) for name, key in keys.items()}
        self._tenant = None if tenant is None else tenant.encode()

    def seal(self, payload: bytes, about: bytes) -> bytes:
        """`payload` encrypted and bound to `about` (what it is and where it belongs)."""
        nonce = os.urandom(12)
        name = self._active.encode()
        sealed: bytes = self._ciphers[self._active].encrypt(nonce, payload, self._bound(about))
        return bytes((len(name),)) + name + nonce + sealed

    def _bound(self, about: bytes) -> bytes:
        """`about` with the tenant that it belongs to."""
        if self._tenant is not None:
            return b"tenant\0" + self._tenant + b"\0" + about
        named = _OF_TENANT.search(about)
        if named is None:
            return about
        return b"tenant\0" + named[1] + b"\0" + about[: named.start()] + about[named.end() :]

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """What `seal` took. Raises `InvalidConfig` for an unknown key, `Corrupt` if it does not verify."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        end = 1 + sealed[0]
        name = sealed[1:end].decode("utf-8", "replace")
        if name not in self._ciphers:
            raise InvalidConfig(
                f"this was sealed with key {name!r}, which is not among the keys {sorted(self._ciphers)}", what="keys"
            )
        cipher, nonce, text = self._ciphers[name], sealed[end : end + 12], sealed[end + 12 :]
        for bound in dict.fromkeys((self._bound(about), about)):
            try:
                payload: bytes = cipher.decrypt(nonce, text, bound)
            except InvalidTag:
                continue
            return payload
        raise Corrupt(f"bytes sealed with key {name!r} do not verify: they were changed or moved", damage="seal")


def wrap(
    payload: bytes,
    *,
    compress_over: int | None = None,
    vault: Vault | None = None,
    about: bytes = b"",
    level: int = 1,
) -> bytes:
    """`payload` in an envelope; compressed (by zstd's `level`) if it is over `compress_over` bytes and that saves a
    fifth."""
    flags = 0
    if compress_over is not None and len(payload) > compress_over and _zstd is not None:
        smaller = _zstd.compress(payload, level)
        if len(smaller) * 5 <= len(payload) * 4:
            payload, flags = smaller, _COMPRESSED
    if vault is not None:
        payload, flags = vault.seal(payload, about), flags | _SEALED
    return _HEAD.pack(FORMAT, flags, checksum(payload, flags)) + payload


def compressed(data: bytes) -> bool:
    """Whether the payload of an envelope is compressed."""
    return bool(data[1] & _COMPRESSED)


def checksum(payload: bytes, flags: int = 0, version: int = FORMAT) -> int:
    """The checksum of an envelope: its first two bytes count too, since they say how to read the others."""
    known = version == FORMAT and flags < len(_STARTS)
    return crc32(payload, _STARTS[flags] if known else crc32(bytes((version, flags))))


_STARTS = tuple(crc32(bytes((FORMAT, flags))) for flags in range(4))
"""The checksums of the first two bytes that there are."""


def unwrap(data: bytes, *, vault: Vault | None = None, about: bytes = b"") -> bytes:
    """The payload of an envelope.

    Raises `FormatTooNew` for a format of a later release, `Corrupt` for anything damaged, `InvalidConfig` for sealed
    bytes without their key, `Unavailable` for compressed bytes where no zstd is installed.
    """
    if len(data) < _HEAD.size:
        raise Corrupt(f"an envelope of {len(data)} bytes is cut short", damage="cut short")
    version, flags, noted = _HEAD.unpack_from(data)
    payload = data[_HEAD.size :]
    if version == FORMAT and not flags and crc32(payload, _STARTS[0]) == noted:
        return payload  # by far most are bare
    if checksum(payload, flags, version) != noted:
        raise Corrupt("an envelope's checksum does not match its bytes", damage="checksum")
    # Only now: a flipped bit must not pass for a newer format. Every format begins with these six bytes.
    if version > FORMAT:
        raise FormatTooNew(
            f"these bytes have format {version}; this release reads up to {FORMAT}. Upgrade milepost.",
            found=version,
            supported=FORMAT,
        )
    if version == 0 or flags & ~(_COMPRESSED | _SEALED):
        raise Corrupt(f"an envelope has the unknown flags {flags} or format {version}", damage="flags")
    if flags & _SEALED:
        if vault is None:
            raise InvalidConfig("these bytes are sealed, and no keys were given: pass keys=…", what="keys")
        payload = vault.open(payload, about)
    if flags & _COMPRESSED:
        if _zstd is None:
            raise Unavailable(
                "these bytes are compressed with zstd: pip install backports.zstd", backend="codec", op="read"
            )
        payload = _zstd.decompress(payload)
    return payload
