# SPDX-License-Identifier: Apache-2.0
"""How train_gpt trains where no flag says otherwise (examples/train_gpt/options)."""

import math

LAYERS, WIDTH, CONTEXT, BATCH, SEED = 4, 128, 64, 8, 1
STEPS = 500
RATE, BETAS, EPSILON, CLIP = 1.5e-3, (0.9, 0.99), 1e-8, 1.0
WARMUP_STEPS, FINAL_FRACTION = 50, 0.1
VALIDATIONS = 10


def learning_rate(step, steps):
    """Up to it, then half a cosine down to a tenth of it."""
    if step <= WARMUP_STEPS:
        return RATE * step / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (steps - WARMUP_STEPS)
    half_wave = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return RATE * (FINAL_FRACTION + (1 - FINAL_FRACTION) * half_wave)


def ends_a_tenth(step, steps):
    """Whether the loss on held-out text is computed after this step."""
    return step * VALIDATIONS // steps != (step - 1) * VALIDATIONS // steps


def freeze_step_of(steps):
    """A fifth of the steps, but not before the learning rate's warm-up ends."""
    return max(1, steps // 5, WARMUP_STEPS)
