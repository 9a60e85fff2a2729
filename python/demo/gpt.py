# SPDX-License-Identifier: Apache-2.0
"""train_gpt's model in Python: parameter by parameter, and drawn from the same
numbers, so that a seed begins with the same parameters as there."""

import math

import torch
from torch import nn
from torch.nn import functional

HEADS, BYTES, HISTORY = 4, 256, 3
EMBEDDING_DEVIATION, WEIGHT_GAIN = 0.02, 0.8


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x, sequences):
        parts = self.query_key_value(self.attention_norm(x))
        parts = parts.view(sequences, len(x) // sequences, 3, HEADS, -1)
        parts = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], is_causal=True
        )
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(x.shape))
        hidden = functional.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh")
        return x + self.mlp_out(hidden)


class Gpt(nn.Module):
    """examples/train_gpt/model.cpp's; gives the loss."""

    def __init__(self, layers, width, context):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(BYTES, width) for _ in range(HISTORY))
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, history, targets):
        x = sum(table(part) for table, part in zip(self.tables, history))
        x = (x + self.positions.weight).flatten(0, 1)
        for block in self.blocks:
            x = block(x, history.shape[1])
        logits = self.head(self.final_norm(x))
        return functional.cross_entropy(logits.float(), targets)

    @torch.no_grad()
    def initialize(self, seed):
        generator = torch.Generator().manual_seed(seed)
        residual = math.sqrt(2 * len(self.blocks))

        def draw(linear, divisor):
            deviation = WEIGHT_GAIN / math.sqrt(linear.in_features) / divisor
            linear.weight.normal_(0, deviation, generator=generator)
            linear.bias.zero_()

        for table in (*self.tables, self.positions):
            table.weight.normal_(0, EMBEDDING_DEVIATION, generator=generator)
        for block in self.blocks:
            draw(block.query_key_value, 1)
            draw(block.attention_out, residual)
            draw(block.mlp_in, 1)
            draw(block.mlp_out, residual)
        self.head.weight.normal_(0, EMBEDDING_DEVIATION, generator=generator)


def inputs_of(sequences):
    """What Gpt takes of an integer tensor [sequences, context + 1]."""
    history = torch.zeros(HISTORY, *sequences[:, 1:].shape, dtype=torch.long)
    for back in range(HISTORY):
        history[back, :, back:] = sequences[:, : sequences.shape[1] - 1 - back]
    return history, sequences[:, 1:].reshape(-1)
