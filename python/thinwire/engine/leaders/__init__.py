# SPDX-License-Identifier: Apache-2.0
"""Engines of which one rank per host, the leader, has the native part.

Ranks of a host are on devices, and sum their gradients in the devices' own process
group. The leader averages with the other hosts' leaders and steps on the host. The
device's group then hands the parameters to the host's other ranks, its followers.
"""

from ... import _core
from .core import LedCore

Core = _core.Engine | LedCore
"""The native engine, or on hosts of several devices what stands for it."""
