# SPDX-License-Identifier: Apache-2.0
"""Hooks for wrappers of torch that average gradients themselves."""

from ..report import HookReport
from ._ddp import Hook, ddp_hook
from ._fsdp import FsdpHook, fsdp_hook

__all__ = ["FsdpHook", "Hook", "HookReport", "ddp_hook", "fsdp_hook"]
