# SPDX-License-Identifier: Apache-2.0
"""train_gpt's batches in Python: the same sequences in the same order."""

from pathlib import Path

import torch

HOLD_OUT_PART = 10  # the last tenth
VALIDATION_BYTES = 64 * 1024
MASK = (1 << 64) - 1


def mix(value):
    """splitmix64 (Steele et al., OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class TextData:
    """examples/train_gpt/text_data.h says what is drawn, and why."""

    def __init__(self, paths, context, validation_bytes=VALIDATION_BYTES):
        self.context = context
        self.texts = [bytearray(Path(path).read_bytes()) for path in paths]
        cuts = [len(text) - len(text) // HOLD_OUT_PART for text in self.texts]
        self.starts = [max(0, cut - context) for cut in cuts]
        windows = [
            (number, begin)
            for number, (text, cut) in enumerate(zip(self.texts, cuts))
            for begin in range(cut, len(text) - context, context)
        ]
        count = min(-(-validation_bytes // context), len(windows))
        self.windows = [windows[i * len(windows) // count] for i in range(count)]

    def window(self, text, begin):
        sequence = self.texts[text][begin : begin + self.context + 1]
        return torch.frombuffer(sequence, dtype=torch.uint8).long()

    def training_batch(self, seed, step, rank, world, sequences):
        drawn = []
        for i in range(sequences):
            number = (step * world + rank) * sequences + i
            begin = mix((mix(seed) + number) & MASK) % sum(self.starts)
            text = 0
            while begin >= self.starts[text]:
                begin -= self.starts[text]
                text += 1
            drawn.append(self.window(text, begin))
        return torch.stack(drawn)

    def validation_batches(self, rank, world, sequences):
        """This rank's windows, some at a time."""
        first, end = (len(self.windows) * r // world for r in (rank, rank + 1))
        for begin in range(first, end, sequences):
            part = self.windows[begin : min(begin + sequences, end)]
            yield torch.stack([self.window(*window) for window in part])
