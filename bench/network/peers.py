# SPDX-License-Identifier: Apache-2.0
"""PowerSGD and local Adam, which need no Thinwire over a slow network.

Everything travels in bf16, through torch.distributed.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


class Sent:
    """Averages over the ranks, and counts the payload that a rank sends."""

    def __init__(self):
        self.bytes = 0

    def count(self, elements, bytes_each):
        ranks = dist.get_world_size()
        self.bytes += 2 * (ranks - 1) * elements * bytes_each // ranks

    def mean(self, tensors):
        """Averages fp32 tensors in place, all of them in one exchange in bf16."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).bfloat16()
        dist.all_reduce(flat.div_(dist.get_world_size()))
        self.count(flat.numel(), 2)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            tensor.copy_(part.view_as(tensor))


class PowerSgd:
    """PowerSGD with warm start, as torch's hook has it, but in two exchanges.

    Matrices and errors stay fp32, and factors travel in bf16. torch's own hook sends
    factors in the gradients' dtype. Wrapped in bf16_compress_wrapper it computes in bf16,
    too, including errors and the Gram-Schmidt. Needs all gradients in one bucket.
    """

    def __init__(self, rank, first_steps, sent):
        self.rank, self.first_steps, self.sent = rank, first_steps, sent
        self.steps = 0
        self.error = None
        self.right = {}  # the factors Q by the matrices' places

    def average(self, bucket):
        """Is a hook for DDP, whose state is the object."""
        values = bucket.buffer()
        self.steps += 1
        if self.steps <= self.first_steps:
            self.sent.mean([values])
        else:
            self.average_in_factors(values, bucket.gradients())
        done = torch.futures.Future()
        done.set_result(values)
        return done

    def average_in_factors(self, values, gradients):
        if self.error is None:
            self.error = torch.zeros_like(values)
            self.right = self.first_factors(gradients)
        values += self.error
        self.error.copy_(values)
        matrices = {place: gradients[place].flatten(1) for place in self.right}
        others = [g for n, g in enumerate(gradients) if n not in self.right]
        left = {place: m @ self.right[place] for place, m in matrices.items()}
        self.sent.mean([*left.values(), *others])
        for place, matrix in matrices.items():
            powerSGD_hook._orthogonalize(left[place].unsqueeze(0))
            torch.mm(matrix.t(), left[place], out=self.right[place])
        self.sent.mean([*self.right.values()])
        for place, matrix in matrices.items():
            torch.mm(left[place], self.right[place].t(), out=matrix)
        self.error -= values

    def first_factors(self, gradients):
        """Returns Q for each matrix that is worth it, the same on all ranks."""
        generator = torch.Generator().manual_seed(0)
        factors = {}
        for place, gradient in enumerate(gradients):
            rows, columns = len(gradient), gradient[0].numel()
            if (rows + columns) * self.rank * 2 < rows * columns:
                factors[place] = torch.randn(columns, self.rank, generator=generator)
        return factors


class LocalSteps:
    """Averages gradients in the first steps, and then what every `interval` steps of
    each rank's own optimizer have changed."""

    def __init__(self, parameters, interval, first_steps, sent):
        self.parameters = list(parameters)
        self.interval, self.first_steps, self.sent = interval, first_steps, sent
        self.common = [p.detach().clone() for p in self.parameters]

    def after_backward(self, step):
        if step <= self.first_steps:
            self.sent.mean([p.grad for p in self.parameters])

    @torch.no_grad()
    def after_step(self, step):
        """Returns whether the step was a local one, after which ranks differ."""
        if step > self.first_steps and step % self.interval != 0:
            return True
        changes = [p - c for p, c in zip(self.parameters, self.common)]
        if step > self.first_steps:
            self.sent.mean(changes)
        for p, c, change in zip(self.parameters, self.common, changes):
            p.copy_(c.add_(change))
        return False

    @torch.no_grad()
    def swap_for_mean(self):
        """Gives the parameters their mean over the ranks, and returns a function that
        gives them their own values again. Exact, and not counted."""
        own = [p.detach().clone() for p in self.parameters]
        for p in self.parameters:
            dist.all_reduce(p.div_(dist.get_world_size()))

        def restore():
            with torch.no_grad():
                for p, value in zip(self.parameters, own):
                    p.copy_(value)

        return restore
