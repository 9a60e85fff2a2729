# SPDX-License-Identifier: Apache-2.0
"""The file that TensorBoard reads: an Event in protobuf per scalar."""

from __future__ import annotations

import math
import os
import struct
import time as clock

from .errors import Unavailable


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    """`number` is an int64; negative ones take ten bytes."""
    number &= 2**64 - 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


class EventFile:
    """Scalars in `directory`/events.out.tfevents.`suffix`, which is written anew.

    Raises Unavailable if the file cannot be written.
    """

    def __init__(self, directory: str, suffix: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
            path = os.path.join(directory, f"events.out.tfevents.{suffix}")
            self._file = open(path, "wb")  # noqa: SIM115
        except OSError as error:
            raise Unavailable(f"tensorboard: {error}") from None
        self._write(clock.time(), _message(3, b"brain.Event:2"))

    def add(self, name: str, value: float, at: int, time: float | None = None) -> None:
        """`at` is on the axis; `time` in Unix seconds, None: now."""
        try:
            simple_value = b"\x15" + struct.pack("<f", value)
        except OverflowError:  # larger than a float can be
            simple_value = b"\x15" + struct.pack("<f", math.copysign(math.inf, value))
        point = _message(1, _message(1, name.encode()) + simple_value)
        step = b"\x10" + _varint(at)
        self._write(clock.time() if time is None else time, step + _message(5, point))

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise Unavailable(f"tensorboard: {error}") from None

    def _write(self, time: float, rest: bytes) -> None:
        event = b"\x09" + struct.pack("<d", time) + rest
        length = struct.pack("<Q", len(event))
        record = length + _masked_crc(length) + event + _masked_crc(event)
        try:
            self._file.write(record)
        except OSError as error:
            raise Unavailable(f"tensorboard: {error}") from None
