# SPDX-License-Identifier: Apache-2.0
"""Checks that C++ accepts a text or a path."""

from __future__ import annotations

import os
from typing import Any

from .errors import InvalidArgument


def require_utf8(what: str, text: str) -> None:
    """Raises InvalidArgument for text that UTF-8 cannot encode, such as lone
    surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what}: must be text that UTF-8 can encode, got {text!r:.60}"
        ) from None


def path_of(what: str, path: Any) -> str:
    """Returns the path. Raises InvalidArgument if no file can have this name."""
    if not isinstance(path, (str, bytes, os.PathLike)) or not os.fspath(path):
        raise InvalidArgument(f"{what}: must be a path, got {path!r:.60}")
    text = os.fsdecode(path)
    require_utf8(what, text)
    if "\0" in text:
        raise InvalidArgument(f"{what}: must be a path without NUL, got {text!r:.60}")
    return text
