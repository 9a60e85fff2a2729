#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the validation loss of train_gpt's model with PyTorch, from its weights.

usage: evaluate_gpt.py WEIGHTS.safetensors TEXT HEADS

WEIGHTS is a checkpoint's model.safetensors, or a file of `thinwire checkpoint export`.
TEXT is the one file of the training. Prints nats per byte, which equal final_val_loss
in summary.json up to rounding.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def logits_of(w, heads, inputs):
    n, context = inputs.shape
    x = w["positions.weight"][:context]
    for back in range(3):  # this byte and the two before it
        shifted = F.pad(inputs, (back, 0))[:, :context]
        x = x + F.embedding(shifted, w[f"byte_{back}.weight"])

    def linear(name, x):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"])

    for i in range(sum(name.endswith("mlp_in.weight") for name in w)):
        b = f"block_{i}."
        parts = linear(b + "query_key_value", norm(b + "attention_norm", x))
        parts = parts.view(n, context, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + linear(b + "attention_out", mixed.transpose(1, 2).flatten(2))
        hidden = F.gelu(
            linear(b + "mlp_in", norm(b + "mlp_norm", x)), approximate="tanh"
        )
        x = x + linear(b + "mlp_out", hidden)
    return linear("head", norm("final_norm", x))


def windows_of(data, context):
    """Returns the last tenth, in windows; at most 64 KiB of predictions, evenly
    spaced."""
    begins = range(len(data) - len(data) // 10, len(data) - context, context)
    count = min(-(-65536 // context), len(begins))
    chosen = [begins[i * len(begins) // count] for i in range(count)]
    return torch.stack([data[b : b + context + 1] for b in chosen])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    weights = {k: v.float() for k, v in load_file(sys.argv[1]).items()}
    data = torch.tensor(list(Path(sys.argv[2]).read_bytes()))
    windows = windows_of(data, len(weights["positions.weight"]))
    logits = logits_of(weights, int(sys.argv[3]), windows[:, :-1])
    print(F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item())
