# SPDX-License-Identifier: Apache-2.0
"""step(grads=..., output_params=...): gradients and copies that the caller holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import optim_cases as cases
import pytest
import torch
from local_ranks import by_ranks
from thinwire import Error

pytestmark = pytest.mark.quick

STEPS = 8
Forms = Callable[[list[list[torch.Tensor]]], Any]


def generator(lists: list[list[torch.Tensor]]) -> Iterator[torch.Tensor]:
    yield from lists[0]


def groups_of(net: torch.nn.Module, number: int) -> list[dict[str, Any]]:
    params = list(net.parameters())
    return [{"params": params[k::number]} for k in range(number)]


# Which optimizer, its groups, the form of the gradients, and the dtype of the copies.
RUNS: dict[str, tuple[str, int, Forms, torch.dtype]] = {
    **{k: (k, 1, lambda lists: lists[0], torch.float16) for k in cases.KINDS},
    "generator": ("OnebitAdam", 1, generator, torch.bfloat16),
    "list of lists": ("OnebitAdam", 1, lambda lists: lists, torch.bfloat16),
    "tuples": ("OnebitAdam", 1, lambda x: tuple(map(tuple, x)), torch.bfloat16),
    "two groups": ("OnebitLamb", 2, lambda lists: lists, torch.float32),
}


@pytest.mark.parametrize("kind,number,form,dtype", RUNS.values(), ids=RUNS)
@by_ranks(2)
def test_given_gradients_give_the_bits_of_those_in_the_parameters(
    comm: Any, kind: str, number: int, form: Forms, dtype: torch.dtype
) -> None:
    usual, given = cases.model(), cases.model()
    first = cases.make(kind, groups_of(usual, number), comm)
    second = cases.make(kind, groups_of(given, number), comm)
    copies = [
        [torch.zeros_like(p, dtype=dtype) for p in group["params"]]
        for group in second.param_groups
    ]
    for step in range(STEPS):
        cases.train(usual, first, [step], comm.rank)
        grads = torch.autograd.grad(
            cases.loss_of(given, comm.rank, step), list(given.parameters())
        )
        of = dict(zip(given.parameters(), grads, strict=True))
        lists = [[of[p] for p in group["params"]] for group in second.param_groups]
        before = [grad.clone() for grad in grads]
        second.step(None, form(lists), output_params=copies)
        assert cases.bits(given) == cases.bits(usual), step
        assert all(map(torch.equal, grads, before))
        for group, outputs in zip(second.param_groups, copies, strict=True):
            for p, output in zip(group["params"], outputs, strict=True):
                assert torch.equal(output, p.detach().to(dtype))


def test_none_stands_for_the_own_gradient_and_for_no_copy() -> None:
    usual, given = cases.model(), cases.model()
    first, second = (cases.make("AdamW", net.parameters()) for net in (usual, given))
    cases.train(usual, first, [0])
    cases.loss_of(given, 0, 0).backward()
    params = list(given.parameters())
    last = params[-1].grad
    assert last is not None
    grads = [None] * 3 + [last.clone()]
    last.fill_(7)
    output = torch.zeros_like(params[0])
    second.step(grads=grads, output_params=[output, None, None, None])
    assert cases.bits(given) == cases.bits(usual)
    assert torch.equal(output, params[0].detach())


@pytest.mark.parametrize("order", [[1, 0, 2], [2, 0, 1], [1, 1, 1], "across"])
def test_own_gradients_may_be_given_in_another_order(order: list[int] | str) -> None:
    """Or a gradient that lies across two of them."""

    def moved(is_copied: bool) -> list[torch.Tensor]:
        params = [torch.nn.Parameter(torch.zeros(33)) for _ in range(3)]
        optimizer = cases.make("AdamW", params, eps=1.0)
        optimizer.zero_grad()
        for k, p in enumerate(params):
            assert p.grad is not None
            p.grad.fill_(1 + 2 * k)
        given = [params[k].grad for k in ([2, 1, 0] if order == "across" else order)]
        if order == "across":
            given[1] = optimizer._memory.grads[20:53]
        optimizer.step(grads=[g.clone() for g in given] if is_copied else given)  # type: ignore[union-attr,misc]
        return [p.detach() for p in params]

    assert all(map(torch.equal, moved(False), moved(True)))


def made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(3)


def params_of(count: int, shape: tuple[int, ...] = (3,)) -> list[torch.Tensor]:
    return [torch.zeros(shape) for _ in range(count)]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "too few": ({"grads": params_of(1)}, "grads: group 0 has 2 parameters, got 1"),
    "a tensor": ({"grads": torch.zeros(3)}, "grads: must be tensors, one for each"),
    "a number": ({"grads": 3}, "grads: must be tensors, .*got int"),
    "shape": (
        {"grads": [torch.zeros(3), torch.zeros(4)]},
        r"grads of parameter 'param.1': must be of shape \(3,\), got \(4,\)",
    ),
    "no tensor": (
        {"output_params": [torch.zeros(3), "x"]},
        "output_params of parameter 'param.1': must be a tensor, got str",
    ),
    "integers": (
        {"grads": [torch.zeros(3), torch.zeros(3, dtype=torch.int32)]},
        "must be floating-point on cpu, got torch.int32",
    ),
    "expanded": (
        {"output_params": [torch.zeros(3), torch.zeros(1).expand(3)]},
        "output_params of parameter 'param.1': must not be expanded",
    ),
    "inference": (
        {"output_params": [torch.zeros(3), made_in_inference_mode()]},
        "output_params of parameter 'param.1': must not be made in torch.inference_mode",
    ),
    "lists": (
        {"grads": [params_of(1), params_of(1)]},
        "grads: must be one list for each of 1 groups, got 2",
    ),
}


@pytest.mark.parametrize(("given", "text"), WRONG.values(), ids=WRONG)
@by_ranks(2)
def test_what_does_not_fit_on_one_rank_is_refused_on_all(
    comm: Any, given: dict[str, Any], text: str
) -> None:
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = cases.make("OnebitAdam", params, comm)
    fits = {name: params_of(2) for name in given}
    with pytest.raises((Error, TypeError), match=text):
        optimizer.step(**(given if comm.rank == 1 else fits))
    assert all(torch.equal(p, torch.ones(3)) for p in params)
    optimizer.step(**fits)  # nobody has been left behind


def test_one_list_does_not_say_which_of_several_groups_it_is_of() -> None:
    net = cases.model()
    optimizer = cases.make("AdamW", groups_of(net, 2))
    with pytest.raises(Error, match="a list of tensors for each of 2 groups, got one"):
        optimizer.step(grads=[torch.zeros_like(p) for p in net.parameters()])
