# SPDX-License-Identifier: Apache-2.0
"""Optimizers in torch operations, for parameters that do not lie on the CPU. Run on CPU tensors
only, so far: nobody has reported another device."""

from .optimizer import make_optimizer

__all__ = ["make_optimizer"]
