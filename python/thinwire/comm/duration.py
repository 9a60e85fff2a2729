# SPDX-License-Identifier: Apache-2.0
"""Time limit of a collective."""

from __future__ import annotations

import datetime
import os

import torch.distributed as dist

from .. import _core
from ..errors import InvalidArgument


def timeout_of(
    timeout: float | datetime.timedelta | None, group: dist.ProcessGroup | None = None
) -> float:
    """Returns the first of these that is set, in seconds: `timeout`, THINWIRE_TIMEOUT,
    the group's time-out, 600."""
    if isinstance(timeout, datetime.timedelta):
        timeout = timeout.total_seconds()
    if timeout is not None:
        if not timeout > 0:
            raise InvalidArgument(f"timeout must be > 0 seconds, got {timeout}")
        return float(timeout)
    text = os.environ.get("THINWIRE_TIMEOUT", "")
    if text:
        try:
            return _core.parse_duration(os.fsencode(text).decode(errors="replace"))
        except InvalidArgument as error:
            rest = str(error).removeprefix("text")
            raise InvalidArgument(f"THINWIRE_TIMEOUT{rest}") from None
    return 600.0 if group is None else _of_group(group)


def _of_group(group: dist.ProcessGroup) -> float:
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            return float(options._timeout.total_seconds())
    return dist.default_pg_timeout.total_seconds()
