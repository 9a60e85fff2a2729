# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts that saves itself and resumes with any other number of ranks per
set of experts.

torchrun --nproc-per-node 4 mixture_of_experts.py [--share N] [--steps N] [--out DIR]

N neighbouring ranks divide the experts among them (--share). Each sends its tokens to
the ranks that hold their experts, by an all-to-all. These send the experts' results
back.
"""

import argparse
from typing import Any

import thinwire
import torch
import torch.distributed as dist

WIDTH, EXPERTS, TOKENS = 16, 4, 128


class AllToAll(torch.autograd.Function):
    """Sends part k of each rank to rank k, and the gradients back again."""

    @staticmethod
    def forward(
        ctx: Any, parts: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient.contiguous(), group=ctx.group)
        return received, None


class Mixture(torch.nn.Module):
    """Sends every token to the one expert that its gate prefers (Fedus et al.,
    arXiv:2101.03961). If that expert is full, the token has none."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        each, place = EXPERTS // self.ranks, dist.get_rank(group)
        self.gate = torch.nn.Linear(WIDTH, EXPERTS)
        # An expert's name is its number among all, whichever rank holds it.
        self.experts = torch.nn.ModuleDict(
            {str(e): make_expert() for e in range(place * each, (place + 1) * each)}
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(tokens).softmax(-1).max(-1)
        room = TOKENS // 2
        queues = torch.nn.functional.one_hot(chosen, EXPERTS)
        place = (queues.cumsum(0) - 1).gather(1, chosen[:, None])[:, 0]
        fits = place < room
        sent = tokens.new_zeros(EXPERTS, room, WIDTH)
        sent[chosen[fits], place[fits]] = tokens[fits]
        received = AllToAll.apply(sent, self.group)
        of_ranks = received.view(self.ranks, len(self.experts), room, WIDTH)
        made = [e(of_ranks[:, k]) for k, e in enumerate(self.experts.values())]
        parts = torch.stack(made, 1).view(EXPERTS, room, WIDTH)
        back = AllToAll.apply(parts, self.group)
        results = tokens.new_zeros(tokens.shape)
        results[fits] = weights[fits, None] * back[chosen[fits], place[fits]]
        return tokens + results


def make_expert() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(4 * WIDTH, WIDTH),
    )


def groups_of(share: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Returns the ranks that divide the experts with this one, and those that hold the
    same."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sets = [list(range(first, first + share)) for first in range(0, world, share)]
    alike = [list(range(first, world, share)) for first in range(share)]
    sharing, _ = dist.new_subgroups_by_enumeration(sets)
    holding, _ = dist.new_subgroups_by_enumeration(alike)
    assert sharing is not None and holding is not None, rank
    return sharing, holding


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=int, default=2, help="1, 2 or 4 ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--zero", type=int, default=0, help="its stage")
    parser.add_argument("--out", default="out/mixture_of_experts")
    given = parser.parse_args()

    dist.init_process_group("gloo")
    sharing, holding = groups_of(given.share)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), Mixture(sharing), torch.nn.Linear(WIDTH, 1)
    )
    is_expert = [".experts." in name for name, _ in model.named_parameters()]
    both = list(zip(model.parameters(), is_expert, strict=True))
    engine, _, _, _ = thinwire.initialize(
        model=model,
        model_parameters=[
            {"params": [p for p, expert in both if not expert]},
            {"params": [p for p, expert in both if expert], "expert_group": holding},
        ],
        config={
            "train_micro_batch_size_per_gpu": TOKENS,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
            "zero_optimization": {"stage": given.zero},
            "gradient_clipping": 1.0,
        },
    )
    begin = 0
    if engine.load_checkpoint(given.out)[0] is not None:
        begin = engine.global_steps
    for step in range(begin, given.steps):
        torch.manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(TOKENS, WIDTH)
        loss = (engine(x) - x.sin().sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
    mean = engine.mean(loss.item())
    engine.save_checkpoint(given.out)
    if dist.get_rank() == 0:
        print(f"steps {begin + 1} to {given.steps}: loss {mean:.4f}")


if __name__ == "__main__":
    main()
