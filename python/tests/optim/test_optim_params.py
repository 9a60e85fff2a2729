# SPDX-License-Identifier: Apache-2.0
"""Parameters become views of one array, and nobody else notices."""

from __future__ import annotations

import copy
import io
from typing import Any

import optim_cases as cases
import pytest
import torch
from safetensors.torch import load_model, save, save_model
from thinwire.errors import FailedPrecondition, InvalidArgument

pytestmark = pytest.mark.quick


def written(value: Any) -> int:
    file = io.BytesIO()
    torch.save(value, file)
    return len(file.getvalue())


def test_files_and_copies_of_a_model_hold_what_they_held(tmp_path: Any) -> None:
    net = cases.model()
    kept = (net.state_dict(), net[0].bias)
    before = [*map(written, kept)], len(save(net.state_dict()))
    optimizer = cases.make("OnebitAdam", net.parameters())
    other = copy.deepcopy(net)
    was = cases.bits(other)
    cases.train(net, optimizer, range(2))
    assert cases.bits(other) == was != cases.bits(net)
    whole, bias = written(net.state_dict()), written(net[0].bias)
    assert whole <= before[0][0] + 64 and bias == before[0][1]
    assert len(save(net.state_dict())) == before[1]
    save_model(net, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert cases.bits(other) == cases.bits(net)
    # Accelerate leaves out what shares a storage with another.
    storages = [p.untyped_storage().data_ptr() for p in net.parameters()]
    assert len({*storages}) == len(storages)


def test_values_identity_and_gradients_stay() -> None:
    net = cases.model()
    values = [p.detach().clone() for p in net.parameters()]
    objects = list(net.parameters())
    cases.loss_of(net, 0, 0).backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    optimizer = cases.make("OnebitAdam", net.parameters())
    for k, parameter in enumerate(net.parameters()):
        assert parameter is objects[k] and parameter.is_leaf
        assert torch.equal(parameter, values[k])
        assert torch.equal(parameter.grad, gradients[k])
    assert cases.are_in_a_row(net.parameters())
    optimizer.zero_grad()
    assert cases.are_in_a_row([p.grad for p in net.parameters()])


def test_tied_frozen_and_empty_parameters() -> None:
    net = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(7, 7, bias=False), "b": torch.nn.Linear(7, 7)}
    )
    net["b"].weight = net["a"].weight
    net["b"].bias.requires_grad_(False)
    net.register_parameter("none", torch.nn.Parameter(torch.zeros(0, 3)))
    net.register_parameter("one", torch.nn.Parameter(torch.zeros(())))
    frozen, at = net["b"].bias.clone(), net["b"].bias.data_ptr()
    optimizer = cases.make("OnebitAdam", net.named_parameters(), freeze_step=1)
    for _ in range(3):
        optimizer.zero_grad()
        (net["b"](net["a"](torch.ones(2, 7))).sum() * net.one.exp()).backward()
        optimizer.step()
    assert net["b"].weight is net["a"].weight
    assert torch.equal(net["b"].bias, frozen) and net["b"].bias.data_ptr() == at
    assert net.none.shape == (0, 3) and net.one != 0
    assert (
        set(optimizer.state_dict()["state"]) == {0, 2, 3}
        or len(optimizer.state_dict()["state"]) == 3
    )
    net["b"].bias.requires_grad_(True)
    net["b"](torch.ones(2, 7)).sum().backward()
    with pytest.raises(FailedPrecondition, match="'b.bias' did not require a gradient"):
        optimizer.step()


@pytest.mark.parametrize("how", ["to", "data", "strides"])
def test_moved_parameters_are_taken_in_again(how: str) -> None:
    def run(move: bool) -> str:
        net, optimizer = cases.made("OnebitAdam")
        for step in range(8):
            optimizer.zero_grad()
            cases.loss_of(net, 0, step).backward()
            if move and how == "to":
                net.to(torch.float64).to(torch.float32)
            elif move and how == "data":
                for parameter in net.parameters():
                    parameter.data = parameter.data.clone()
            elif move and how == "strides":
                net[0].weight.data = net[0].weight.data.t().contiguous().t()
            optimizer.step()
        assert cases.are_in_a_row(net.parameters())
        return cases.bits(net)

    assert run(True) == run(False)


@pytest.mark.parametrize("kind", ["AdamW", "OnebitAdam", "ZeroOneAdam"])
def test_parameters_may_take_values_from_each_other(kind: str) -> None:
    """Swapped, rotated and transposed, they lie in the memory that a step writes."""
    a, b, c = (torch.nn.Parameter(torch.randn(5, 5)) for _ in range(3))
    optimizer = cases.make(kind, [a, b, c], lr=1e-6)
    want = [p.detach().clone() for p in (b, c, a)]
    a.data, b.data, c.data = b.data, c.data, a.data
    a.data = a.data.t()
    want[0] = want[0].t()
    for parameter in (a, b, c):
        parameter.grad = torch.ones(5, 5)
    optimizer.step()
    for parameter, value in zip((a, b, c), want, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=0, atol=1e-5)


def of_another_shape(net: Any) -> None:
    net[2].bias.data = torch.zeros(2)


CHANGES: dict[str, Any] = {
    "'0.weight': its dtype was torch.float32": lambda net: net.to(torch.bfloat16),
    r"'2.bias': its shape was \(1,\)": of_another_shape,
    "'0.weight' was frozen after": lambda net: net[0].weight.requires_grad_(False),
}


@pytest.mark.parametrize("text", CHANGES)
def test_changes_of_parameters_are_refused_until_they_are_undone(text: str) -> None:
    net, optimizer = cases.made("OnebitAdam", named=True)
    cases.train(net, optimizer, range(2))
    bits = cases.bits(net)
    CHANGES[text](net)
    with pytest.raises(FailedPrecondition, match=text):
        optimizer.step()
    assert optimizer._made.optimizer.steps == 2
    net.to(torch.float32).requires_grad_(True)
    if net[2].bias.numel() > 1:
        net[2].bias.data = torch.zeros(1)
    elif "dtype" not in text:
        assert cases.bits(net) == bits
    optimizer.step()


def test_autograd_notices_that_parameters_were_written() -> None:
    net, optimizer = cases.made("OnebitAdam")
    optimizer.zero_grad()
    loss = cases.loss_of(net, 0, 0)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_refused_at_construction() -> None:
    def refused(tensor: torch.Tensor, text: str, *more: torch.Tensor) -> None:
        pairs = [("w", torch.nn.Parameter(torch.ones(3))), ("x", tensor)]
        before = pairs[0][1].data_ptr()
        with pytest.raises(InvalidArgument, match=text):
            cases.make("OnebitAdam", pairs)
        assert pairs[0][1].data_ptr() == before

    refused(torch.ones(2, dtype=torch.complex64).requires_grad_(), "'x' is complex")
    refused(torch.ones(2, dtype=torch.float64).requires_grad_(), "'x' is torch.float64")
    refused(torch.eye(3).to_sparse().requires_grad_(), "'x' is sparse")
    refused(torch.ones(2, device="meta").requires_grad_(), "'x' is on the device meta")
    refused(torch.nn.Parameter(torch.ones(1).expand(5)), "'x' is expanded")
    whole = torch.ones(9)
    halves = [
        ("a", torch.nn.Parameter(whole[3:])),
        ("b", torch.nn.Parameter(whole[:4])),
    ]
    with pytest.raises(InvalidArgument, match="'a' shares memory with 'b'"):
        cases.make("OnebitAdam", halves)
    apart = [torch.nn.Parameter(whole[:3]), torch.nn.Parameter(whole[3:])]
    cases.make("OnebitAdam", apart).close()
    for attribute, text in (("_is_fsdp_flattened", "FSDP"), ("ds_id", "DeepSpeed")):
        tensor = torch.nn.Parameter(torch.ones(2))
        setattr(tensor, attribute, True)
        refused(tensor, text)
    with pytest.raises(InvalidArgument, match="got the module itself"):
        cases.make("OnebitAdam", cases.model())
    with pytest.raises(FailedPrecondition, match="nothing to train"):
        cases.make("OnebitAdam", [torch.zeros(3)])
    with pytest.raises(ValueError, match="empty parameter list"):
        cases.make("OnebitAdam", [])
    twice = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="more than one parameter group"):
        cases.make("OnebitAdam", [{"params": [twice]}, {"params": [twice]}])


def test_a_dtensor_is_refused(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, init_device_mesh

    dist.init_process_group(
        "gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store"
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.ones(3), mesh).requires_grad_()
        with pytest.raises(InvalidArgument, match="'x' is a DTensor: .* fully_shard"):
            cases.make("OnebitAdam", [("x", tensor)])
    finally:
        dist.destroy_process_group()


def test_gradients_of_other_kinds() -> None:
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = cases.make("OnebitAdam", embedding.named_parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(InvalidArgument, match="'weight': its gradient must be dense"):
        optimizer.step()

    class Parameter(torch.nn.Parameter):
        """With a gradient of its own choice, as mixed precision frameworks have it."""

        wanted: torch.dtype

        @property
        def grad(self) -> Any:
            return torch.full_like(self.data, 0.5, dtype=self.wanted)

    def step(*dtypes: torch.dtype) -> list[float]:
        params = [Parameter(torch.ones(3)) for _ in dtypes]
        for parameter, dtype in zip(params, dtypes, strict=True):
            parameter.wanted = dtype
        cases.make("AdamW", params).step()
        return [float(p.detach()[0]) for p in params]

    half, single = torch.bfloat16, torch.float32
    assert step(half, half) == step(half, single) == step(single, single)


def test_parameters_in_channels_last_are_warned_of() -> None:
    net = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    with pytest.warns(UserWarning, match="'weight': memory becomes contiguous"):
        optimizer = cases.make("OnebitAdam", net.named_parameters())
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    net(x).square().mean().backward()
    optimizer.step()
    assert net.weight.is_contiguous()


def test_the_text_of_an_optimizer_says_where_its_run_is() -> None:
    net, optimizer = cases.made("OnebitAdam", freeze_step=4)
    cases.train(net, optimizer, range(6))
    text = repr(optimizer)
    assert "Parameter Group 0" in text
    assert "298 elements of float32, rank 0 of 1 over local" in text
    assert "6 steps, the next one compressed, freeze after step 4" in text
    assert "0 bytes sent, 0 saved" in text
    optimizer.close()
    assert "steps" not in repr(optimizer)
