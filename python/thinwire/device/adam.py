# SPDX-License-Identifier: Apache-2.0
"""Adam's arithmetic on rows: each operation rounded to fp32 in the order of
include/thinwire/kernels/adam.h. Source: Kingma and Ba, arXiv:1412.6980; decoupled decay:
Loshchilov and Hutter, arXiv:1711.05101.

No operation is joined with another (`alpha=`, addcmul): that may fuse and round once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from .settings import Group
from .sums import root

Number = float | torch.Tensor


def rounded(x: float) -> float:
    """`x` rounded to fp32."""
    return ctypes.c_float(x).value


@dataclass(frozen=True)
class Coefficients:
    """One step's numbers, formed in double and rounded once: numbers where all groups agree,
    else a column with a value per row."""

    beta1: Number
    one_minus_beta1: Number
    beta2: Number
    one_minus_beta2: Number
    epsilon: Number
    exp_avg_scale: Number
    exp_avg_sq_scale: Number
    l2_decay: Number
    decoupled_decay: Number
    minus_learning_rate: Number
    grad_scale: float
    epsilon_inside_sqrt: bool

    def of(self, rows: slice) -> Coefficients:
        """Those of some rows."""
        columns: dict[str, Any] = {
            f.name: value[rows]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), torch.Tensor)
        }
        return replace(self, **columns) if columns else self


def correction(beta: float, steps: int) -> float:
    """1 / (1 - beta^steps), in double."""
    return 1 / (1 - math.pow(beta, steps))


def per_row(values: Sequence[float], group_of_row: torch.Tensor) -> Number:
    """A value per group, rounded to fp32, as a number or as a column."""
    if all(value == values[0] for value in values):
        return rounded(values[0])
    table = torch.tensor(
        values, dtype=torch.float64, device=group_of_row.device
    ).float()
    return table[group_of_row][:, None]


def as_tensor(number: Number, like: torch.Tensor) -> torch.Tensor:
    """To divide by: some devices divide by a number as they multiply by its reciprocal."""
    return number if isinstance(number, torch.Tensor) else like.new_full((), number)


@dataclass
class AdamNumbers:
    """The groups' options, of which it makes the coefficients of a step."""

    groups: list[Group]
    group_of_row: torch.Tensor
    bias_correction: bool
    epsilon_inside_sqrt: bool
    decoupled_decay: bool

    def corrections(self, beta: str, steps: int) -> list[float]:
        """Per group, in double."""
        if not self.bias_correction:
            return [1.0] * len(self.groups)
        return [correction(getattr(group, beta), steps) for group in self.groups]

    def coefficients(
        self, step: int, grad_scale: float, variance_updates: int | None = None
    ) -> Coefficients:
        """Of step number `step`; the variance has been updated as often, unless said
        otherwise."""
        updates = step if variance_updates is None else variance_updates

        def column(of_group: Callable[[Group], float]) -> Number:
            return per_row(
                [of_group(group) for group in self.groups], self.group_of_row
            )

        zero = 0.0
        decay = column(lambda g: g.weight_decay)
        return Coefficients(
            beta1=column(lambda g: g.beta1),
            one_minus_beta1=column(lambda g: 1 - g.beta1),
            beta2=column(lambda g: g.beta2),
            one_minus_beta2=column(lambda g: 1 - g.beta2),
            epsilon=column(lambda g: g.epsilon),
            exp_avg_scale=per_row(self.corrections("beta1", step), self.group_of_row),
            exp_avg_sq_scale=per_row(
                self.corrections("beta2", updates), self.group_of_row
            ),
            l2_decay=zero if self.decoupled_decay else decay,
            decoupled_decay=decay if self.decoupled_decay else zero,
            minus_learning_rate=column(lambda g: -g.learning_rate),
            grad_scale=rounded(grad_scale),
            epsilon_inside_sqrt=self.epsilon_inside_sqrt,
        )


def _add_decay(x: torch.Tensor, decay: Number, p: torch.Tensor) -> torch.Tensor:
    if isinstance(decay, torch.Tensor):
        return torch.where(decay != 0, x + decay * p, x)
    return x + decay * p if decay != 0 else x


def scaled_gradient(g: torch.Tensor, p: torch.Tensor, c: Coefficients) -> torch.Tensor:
    """fp32, with L2 decay where that is asked for."""
    return _add_decay(g.float() * c.grad_scale, c.l2_decay, p)


def next_momentum(m: torch.Tensor, g: torch.Tensor, c: Coefficients) -> torch.Tensor:
    """beta1 m + (1 - beta1) g of a gradient that is scaled already."""
    return m * c.beta1 + c.one_minus_beta1 * g


def next_variance(v: torch.Tensor, g: torch.Tensor, c: Coefficients) -> torch.Tensor:
    return v * c.beta2 + (c.one_minus_beta2 * g) * g


def denominator(v: torch.Tensor, c: Coefficients) -> torch.Tensor:
    corrected = v * c.exp_avg_sq_scale
    if c.epsilon_inside_sqrt:
        return root(corrected + c.epsilon)
    return root(corrected) + c.epsilon


def update(
    p: torch.Tensor, m: torch.Tensor, d: torch.Tensor, c: Coefficients
) -> torch.Tensor:
    """What the learning rate multiplies, decoupled decay included."""
    return _add_decay((m * c.exp_avg_scale) / d, c.decoupled_decay, p)


def moved(
    p: torch.Tensor, m: torch.Tensor, d: torch.Tensor, c: Coefficients
) -> torch.Tensor:
    """The parameters after a step."""
    return p + c.minus_learning_rate * update(p, m, d, c)


def adam_step(
    p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, c: Coefficients
) -> None:
    """kernels::adam on some rows, in place."""
    own = scaled_gradient(g, p, c)
    m.copy_(next_momentum(m, own, c))
    v.copy_(next_variance(v, own, c))
    p.copy_(moved(p, m, denominator(v, c), c))
