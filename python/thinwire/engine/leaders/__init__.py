# SPDX-License-Identifier: Apache-2.0
"""Engines whose native part is only on the first rank of a host, the leader."""

from ... import _core
from .core import LedCore

Core = _core.Engine | LedCore
"""The native engine, or its replacement on hosts with several devices."""
