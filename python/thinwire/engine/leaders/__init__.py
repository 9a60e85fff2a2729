# SPDX-License-Identifier: Apache-2.0
"""Engines on hosts where only the first rank, the leader, has a native engine."""

from ... import _core
from .core import LedCore

Core = _core.Engine | LedCore
"""The native engine, or its replacement on hosts with several devices."""
