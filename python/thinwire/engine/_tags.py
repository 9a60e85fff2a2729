# SPDX-License-Identifier: Apache-2.0
"""Names of checkpoints, the file `latest`, and the names in a checkpoint. Local."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress

from .. import _core
from .._paths import require_utf8
from ..errors import InvalidArgument, Unavailable

LATEST = "latest"
_MOST_BYTES = 200


def require_tag(tag: str) -> None:
    """Raises InvalidArgument unless it can be the name of a directory."""
    require_utf8("tag", tag)
    if (
        not 0 < len(tag.encode()) <= _MOST_BYTES
        or tag in (".", "..", LATEST)
        or any(c in tag for c in "/\\\0\n\r")
    ):
        raise InvalidArgument(
            f"tag: must be a file name of 1 to {_MOST_BYTES} bytes other than "
            f"'{LATEST}', got {tag!r:.60}"
        )


def write_latest(directory: str | os.PathLike[str], tag: str) -> str:
    """Puts the tag into `latest`, which has the old one until the new file is whole."""
    temporary = os.path.join(directory, f".latest-{uuid.uuid4().hex}")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(tag)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, os.path.join(directory, LATEST))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return tag


def read_latest(directory: str | os.PathLike[str]) -> str:
    """Returns the tag in `latest`; empty if there is no such file."""
    path = os.path.join(directory, LATEST)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read(_MOST_BYTES + 1).rstrip("\r\n")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise Unavailable(f"{path}: is not UTF-8: {error}") from None


def names_in(root: str) -> list[str]:
    """Returns the names of parameters in the newest complete checkpoint, if any."""
    if not os.path.isdir(root):
        return []
    for found in _core.inspect(root):
        if found["complete"]:
            with open(os.path.join(found["path"], "manifest.json"), "rb") as file:
                return [
                    parameter["name"] for parameter in json.load(file)["parameters"]
                ]
    return []
