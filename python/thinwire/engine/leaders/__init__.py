# SPDX-License-Identifier: Apache-2.0
"""Engines of which only the first rank of a host, its leader, has the native part."""

from ... import _core
from .core import LedCore

Core = _core.Engine | LedCore
"""The native engine, or on hosts of several devices what stands for it."""
