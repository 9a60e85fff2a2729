# SPDX-License-Identifier: Apache-2.0
"""What scripts written for DeepSpeed name: wrappers' attributes, whole values, memory,
backends."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from engines import (
    BF16,
    FP16,
    ONEBIT,
    Net,
    alone,
    config_of,
    flat,
    loss_of,
    make,
    train,
    trained,
    zero,
)
from local_ranks import by_ranks
from thinwire import compat, optim
from thinwire.comm import run_local_ranks
from thinwire.config import named_backend, read_config
from thinwire.errors import FailedPrecondition, InvalidArgument, Unavailable
from thinwire.integrations._saved import require_ours

pytestmark = pytest.mark.quick


LAMB = {"optimizer": {"type": "Lamb", "params": {"lr": 0.01}}}


# ---- names of the FP16 wrappers


@by_ranks(2)
def test_the_loss_scale_can_be_set(comm: Any) -> None:
    engine = make(comm, config_of(**FP16))
    assert engine.optimizer.cur_scale == engine.optimizer.loss_scale == 256
    for wrong in ("x", None, True, [512.0]):
        bad: Any = wrong if comm.rank == 1 else 512.0
        kind = TypeError if comm.rank == 1 else InvalidArgument
        with pytest.raises(kind, match="loss_scale"):
            engine.optimizer.loss_scale = bad
    for value, text in ((0, r"loss_scale must be in \["), (16 + comm.rank, "rank 1")):
        with pytest.raises(InvalidArgument, match=text):
            engine.optimizer.loss_scale = value
    engine.optimizer.loss_scale = 64
    train(engine, range(1))
    assert engine.report.loss_scale == engine.loss_scale() == 64
    plain = make(comm, config_of(**BF16))
    with pytest.raises(FailedPrecondition, match="unless parameters are fp16"):
        plain.optimizer.loss_scale = 2


@by_ranks(2)
def test_names_of_the_wrappers_mean_what_they_say(comm: Any) -> None:
    engine = make(comm, config_of(**FP16))
    optimizer = engine.optimizer
    optimizer.set_lr(0.25)
    assert optimizer.get_lr() == 0.25
    assert engine.get_lr() == [0.25]
    assert optimizer.clip_grad == 1.0
    assert optimizer.custom_loss_scaler is False
    assert optimizer.external_loss_scale is None
    loss = loss_of(engine, comm.rank, 0)
    optimizer.backward(loss)
    engine.step()
    assert engine.was_step_applied()
    (halves,), (masters,) = optimizer.fp16_groups, optimizer.fp32_groups
    trained = [p for p in halves if p.requires_grad]
    assert len(trained) == len(masters) > 3
    for half, master in zip(trained, masters, strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(half.detach(), master.half())
    assert any(
        not torch.equal(half.detach().float(), master)
        for half, master in zip(trained, masters, strict=True)
    )
    optimizer.refresh_fp32_params()
    for half, master in zip(trained, optimizer.fp32_groups[0], strict=True):
        assert torch.equal(half.detach().float(), master)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda o: o.override_loss_scale(2.0), "loss_scale"),
        (lambda o: o.unscale_and_clip_grads([], 1.0), "gradient_clipping"),
        (lambda o: o.step_fused_lamb(), r"engine.step\(\)"),
        (
            lambda o: o.backward(torch.ones(1).sum(), create_graph=True),
            "torch.autograd.grad",
        ),
    ],
)
def test_names_that_mean_nothing_say_what_to_use(call: Any, instead: str) -> None:
    engine = alone(config_of(**FP16))
    with pytest.raises(Unavailable, match=instead):
        call(engine.optimizer)
    engine.destroy()


@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"])
@pytest.mark.parametrize("by", ["engine", "optimizer"])
def test_the_freeze_and_the_defaults_are_where_scripts_read_them(
    kind: str, by: str
) -> None:
    freeze = {"var_freeze_step" if kind == "ZeroOneAdam" else "freeze_step": 2}
    if by == "engine":
        settings = {"optimizer": {"type": kind, "params": freeze}}
        engine = alone(config_of(**FP16, **settings))
        optimizer, step = engine.optimizer, lambda k: train(engine, range(k, k + 1))
    else:
        net = cases.model()
        optimizer = getattr(optim, kind.replace("OneBit", "Onebit"))(
            net.parameters(), **freeze
        )
        step = lambda k: cases.train(net, optimizer, [k], 0)
    of_lamb = {"max_coeff": 10.0, "min_coeff": 0.01} if kind == "OneBitLamb" else {}
    group = optimizer.param_groups[0]
    assert {k: group[k] for k in ("max_coeff", "min_coeff") if k in group} == of_lamb
    frozen = []
    for k in range(3):
        step(k)
        frozen.append((optimizer.adam_freeze_key, optimizer.lamb_freeze_key))
    assert frozen == [(False, False), (True, True), (True, True)]
    assert optimizer.freeze_step == 2
    with pytest.raises(AttributeError, match="worker_errors.*here it is in state_dict"):
        optimizer.worker_errors  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'zzz'$"):
        optimizer.zzz  # noqa: B018


def test_an_engines_optimizer_stands_for_the_wrapper_and_the_wrapped() -> None:
    engine = alone(config_of(**FP16))
    optimizer = engine.optimizer
    assert optimizer._global_grad_norm is None
    train(engine, range(1))
    assert optimizer._global_grad_norm == engine.get_global_grad_norm() > 0
    assert optimizer.optimizer.param_groups is optimizer.param_groups
    assert optimizer.loss_scaler.cur_scale == optimizer.loss_scale == 256
    assert optimizer.loss_scaler.dynamic and optimizer.dynamic_loss_scale
    state = optimizer.state_dict()
    assert (state["cur_scale"], state["overflow"]) == (256, False)
    assert (state["dynamic_loss_scale"], state["clip_grad"]) == (True, 1.0)
    optimizer.load_state_dict(state)
    with pytest.raises(InvalidArgument, match="got EngineOptimizer; a cure"):
        require_ours("prepare", [optimizer], "a cure")


@by_ranks(2)
def test_functions_of_the_wrappers(comm: Any) -> None:
    assert compat.get_global_norm([3.0, 4.0]) == 5
    mpu = SimpleNamespace(
        get_data_parallel_group=lambda: None, get_model_parallel_group=lambda: comm
    )
    parameter = torch.nn.Parameter(torch.ones(2))
    overflow = compat.CheckOverflow([[parameter]], mpu=mpu)
    assert not overflow.check()
    parameter.grad = torch.tensor([1.0, math.nan if comm.rank else 0.0])
    assert overflow.check()
    assert not overflow.check([[]])
    if comm.rank:
        parameter.grad = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    with pytest.raises((NotImplementedError, InvalidArgument), match="aten::"):
        overflow.check()


def test_check_overflow_closes_its_own_communicator() -> None:
    overflow = compat.CheckOverflow()
    comm = overflow._comm
    del overflow
    assert comm.closed


def test_memory_is_printed_only_if_forced(capsys: Any) -> None:
    compat.see_memory_usage("before")
    assert capsys.readouterr().out == ""
    compat.see_memory_usage("after", force=True)
    assert re.search("after.*parameters [0-9]+.*peak", capsys.readouterr().out)


# ---- trust ratios, memory


def test_lambs_coefficients_are_those_of_its_parameters() -> None:
    def run(comm: Any) -> list[float]:
        alone = cases.make("Lamb", cases.model().parameters(), comm)
        assert alone.get_lamb_coeffs() == [0.0] * 4
        assert (
            cases.make("AdamW", cases.model().parameters(), comm).get_lamb_coeffs()
            == []
        )
        net, onebit = cases.made("OnebitLamb", comm)
        cases.train(net, onebit, range(6), comm.rank)
        saved = onebit.state_dict()["thinwire"]["lamb_coeffs"]
        assert onebit.get_lamb_coeffs() == saved.tolist()
        found = []
        for stage in (0, 2):
            engine = trained(comm, 2, **LAMB, **zero(stage))
            found.append(engine.get_lamb_coeffs())
            assert engine.optimizer.get_lamb_coeffs() == found[-1]
        assert found[0] == found[1]
        assert len(found[0]) == 10
        return found[0]

    first, second = run_local_ranks(2, run)
    assert first == second
    assert all(0 < value <= 10 for value in first)


def test_memory_is_reported_by_kind() -> None:
    def run(comm: Any) -> None:
        engine = make(comm, config_of(**ONEBIT))
        elements = sum(p.numel() for p in engine.parameters() if p.requires_grad)
        train(engine, range(1))
        use = engine.memory_use()
        assert use["parameters"] >= 4 * elements
        assert use["gradients"] >= 4 * elements
        assert use["states"] >= 8 * elements
        kinds = ("parameters", "gradients", "states", "buckets", "other")
        assert use["peak"] >= sum(use[kind] for kind in kinds) > 0
        assert sorted(use) == sorted([*kinds, "peak"])

    run_local_ranks(2, run)
    net, optimizer = cases.made("AdamW")
    cases.train(net, optimizer, range(1))
    assert optimizer.memory_use()["states"] >= 8 * sum(
        p.numel() for p in net.parameters()
    )


def test_breakdowns_are_logged(caplog: Any) -> None:
    caplog.set_level("INFO", "thinwire")

    def run(comm: Any) -> float:
        config = config_of(
            wall_clock_breakdown=True, memory_breakdown=True, steps_per_print=2
        )
        engine = make(comm, config)
        train(engine, range(4))
        return sum(4e-6 * p.numel() for p in engine.parameters() if p.requires_grad)

    megabytes, _ = run_local_ranks(2, run)
    assert caplog.text.count("time per step, mean of 2 steps up to") == 2
    assert caplog.text.count("memory of this rank at the start: ") == 1
    assert caplog.text.count("memory of this rank after the first step: ") == 1
    for kind in ("parameters", "gradients"):
        told = re.findall(rf"{kind} ([0-9.e-]+) MB", caplog.text)
        assert len(told) == 2
        assert all(float(value) >= 0.99 * megabytes for value in told), told


# ---- whole values


@pytest.mark.parametrize("stage", [0, 1, 2])
@by_ranks(2)
def test_whole_values_are_read_and_set(comm: Any, stage: int) -> None:
    engine = make(comm, config_of(**BF16, **zero(stage)))
    weight, name = engine.module.last.weight, "last.weight"
    train(engine, range(2))
    whole = engine.full_parameter(weight)
    assert whole.shape == weight.shape
    assert whole.dtype == torch.float32
    assert torch.equal(whole.bfloat16(), weight.detach())
    assert torch.equal(compat.safe_get_full_fp32_param(weight), whole)
    moment = engine.full_state(name, "exp_avg")
    assert moment.shape == weight.shape
    assert moment.abs().sum() > 0
    assert torch.equal(compat.safe_get_full_optimizer_state(weight, "exp_avg"), moment)
    shown = engine.optimizer.state[weight].get("exp_avg")
    assert torch.equal(shown, moment) if stage == 0 else shown is None
    wanted = torch.full_like(whole, 1 + 2**-20)
    compat.safe_set_full_fp32_param(weight, wanted)
    assert torch.equal(engine.full_parameter(weight), wanted)
    assert torch.equal(weight.detach(), wanted.bfloat16())
    train(engine, range(2, 3))
    change = (engine.full_parameter(weight) - wanted).abs()
    assert 0 < change.max() < 0.05
    for wrong in (torch.zeros(3), "no.such", weight.clone()):
        with pytest.raises(InvalidArgument, match="does not train"):
            engine.full_parameter(wrong)
    with pytest.raises(InvalidArgument, match="no parameter that an engine"):
        compat.safe_get_full_fp32_param(torch.zeros(3))


def test_whole_values_that_no_run_has_are_refused() -> None:
    engine = alone(config_of(**zero(1)))
    weight, bias = engine.module.first.weight, engine.module.last.bias
    shape = r"value: must be of shape \(33, 7\), got "
    values: dict[str, Any] = {
        "value: must be a tensor, got list": [0.0] * 231,
        shape + r"\(7, 33\)": torch.zeros(7, 33),
        shape + r"\(231,\)": torch.zeros(231),
    }
    engine.backward(loss_of(engine, 0, 0))
    for text, value in values.items():
        with pytest.raises(InvalidArgument, match=text):
            compat.safe_set_full_grad(weight, value)
    engine.step()
    before, kept = flat(engine.module), engine.full_state(bias, "exp_avg_sq")
    for text, value in values.items():
        with pytest.raises(InvalidArgument, match=text):
            compat.safe_set_full_fp32_param(weight, value)
        with pytest.raises(InvalidArgument, match=text):
            compat.safe_set_full_optimizer_state(weight, value, "exp_avg")
    no_text, no_parameter = "key: must be text, as 'exp_avg', got None", 3
    wrong: Any = None
    for key, number, text in (
        ("exp_avg", math.nan, "exp_avg of 'last.bias' must be finite"),
        ("exp_avg_sq", math.inf, "exp_avg_sq of 'last.bias' must be finite"),
        ("exp_avg_sq", -1.0, "exp_avg_sq of 'last.bias' must be >= 0, got -1"),
        (wrong, 0.0, no_text),
    ):
        with pytest.raises(InvalidArgument, match=text):
            compat.safe_set_full_optimizer_state(bias, torch.full((1,), number), key)
    with pytest.raises(InvalidArgument, match=no_text):
        compat.safe_get_full_optimizer_state(bias, wrong)
    with pytest.raises(InvalidArgument, match="param: 3 is no parameter"):
        compat.safe_get_full_fp32_param(no_parameter)  # type: ignore[arg-type]
    assert torch.equal(engine.full_state(bias, "exp_avg_sq"), kept)
    assert torch.equal(flat(engine.module), before)


@pytest.mark.parametrize("rate", [True, "0.02", None, [0.1], math.nan, -1])
def test_what_is_no_learning_rate_is_refused(rate: Any) -> None:
    engine = alone(config_of())
    before = engine.optimizer.get_lr()
    is_number = rate is not True and isinstance(rate, (int, float))
    text = "must be finite and >= 0, got" if is_number else ": must be a number, got"
    with pytest.raises((InvalidArgument, TypeError), match=f"lr.*{text}"):
        engine.optimizer.set_lr(rate)
    assert engine.optimizer.get_lr() == before
    engine.optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(
        (InvalidArgument, TypeError), match=r"\['lr'\].* must be|lr must"
    ):
        engine.backward(loss_of(engine, 0, 0))


def append(groups: list[dict[str, Any]]) -> None:
    groups.append({**groups[0], "params": [torch.nn.Parameter(torch.ones(2))]})


def append_parameter(groups: list[dict[str, Any]]) -> None:
    groups[0]["params"].append(torch.nn.Parameter(torch.ones(2)))


EDITS: dict[str, tuple[Any, str]] = {
    "appended": (append, "there were 1 groups .* and there are 2 now; add_param_group"),
    "removed": (list.clear, "there were 1 groups .* and there are 0 now"),
    "parameter": (append_parameter, r"\[0\]\['params'\]: there were .* now"),
    "lr": (lambda groups: groups[0].pop("lr"), r"\[0\]\['lr'\] was removed"),
    "weight_decay": (
        lambda groups: groups[0].pop("weight_decay"),
        r"\[0\]\['weight_decay'\] was removed",
    ),
}


@pytest.mark.parametrize("edit,text", EDITS.values(), ids=EDITS)
def test_groups_that_were_edited_are_named(edit: Any, text: str) -> None:
    engine = alone(config_of())
    engine.backward(loss_of(engine, 0, 0))
    edit(engine.optimizer.param_groups)
    with pytest.raises(FailedPrecondition, match="param_groups.*" + text):
        engine.step()
    for given in (False, True):
        net = cases.model()
        params = list(net.parameters())
        optimizer = cases.make("AdamW", params)
        edit(optimizer.param_groups)
        before = cases.bits(params)
        grads = [torch.ones_like(p) for p in params] if given else None
        with pytest.raises(FailedPrecondition, match="param_groups.*" + text):
            optimizer.step(grads=grads)
        assert cases.bits(params) == before


def test_gradients_are_the_means_of_the_ranks_with_zero() -> None:
    def run(comm: Any) -> torch.Tensor:
        engine = make(comm, config_of(**zero(2)))
        bias = engine.module.last.bias
        engine.backward(loss_of(engine, comm.rank, 0))
        mean = compat.safe_get_full_grad(bias).clone()
        compat.safe_set_full_grad(bias, torch.zeros_like(mean))
        engine.step()
        assert torch.equal(engine.full_state(bias, "exp_avg"), torch.zeros_like(mean))
        plain = make(comm, config_of())
        with pytest.raises(FailedPrecondition, match="only with ZeRO"):
            plain.full_gradient(plain.module.last.bias)
        return mean

    first, second = run_local_ranks(2, run)
    assert torch.equal(first, second)

    def local(rank: int) -> torch.Tensor:
        net = Net()
        loss_of(net, rank, 0).backward()
        assert net.last.bias.grad is not None
        return net.last.bias.grad

    torch.testing.assert_close(first, (local(0) + local(1)) / 2)


def test_moments_are_shown_in_the_state_of_a_parameter() -> None:
    net, optimizer = cases.made("OnebitAdam")
    cases.train(net, optimizer, range(2))
    saved = optimizer.state_dict()["state"]
    for number, parameter in enumerate(net.parameters()):
        state = optimizer.state[parameter]
        assert state["step"] == 2
        for key in ("exp_avg", "exp_avg_sq"):
            assert key in state
            assert state[key].device.type == "cpu"
            assert torch.equal(state[key], saved[number][key])
        assert state.get("exp_avg").abs().sum() > 0
    cases.train(net, optimizer, range(2, 6))
    state = optimizer.state[net[0].weight]
    assert "exp_avg" in state
    assert "exp_avg_sq" not in state, "frozen"
    with pytest.raises(KeyError):
        state["momentum_buffer"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["ZeroOneAdam", "OuterAdamW", "OuterOnebitAdam"])
@pytest.mark.filterwarnings("ignore:parameters differ")
def test_momentum_is_shown_in_local_steps(kind: str, ranks: int) -> None:
    def run(comm: Any) -> list[str]:
        net, optimizer = cases.made(kind, comm)
        phases = []
        for step in range(18):
            phases += cases.train(net, optimizer, range(step, step + 1), comm.rank)
            saved = optimizer.state_dict()["state"]
            for number, parameter in enumerate(net.parameters()):
                shown = optimizer.state[parameter]["exp_avg"]
                assert torch.equal(shown, saved[number]["exp_avg"])
        return phases

    assert "local" in run_local_ranks(ranks, run)[0]


# ---- groups


@pytest.mark.parametrize(
    ("key", "value"), [("max_grad_norm", 1.0), ("bias_correction", False)]
)
def test_an_option_of_the_whole_optimizer_is_no_key_of_a_group(
    key: str, value: Any
) -> None:
    net = cases.model()
    groups = [{"params": list(net.parameters()), key: value}]
    with pytest.raises(InvalidArgument, match=rf"param_groups\[0\]\['{key}'\] must be"):
        optim.OnebitLamb(groups)
    optim.OnebitLamb(groups, **{key: value}).close()
    model = Net()
    with pytest.raises(InvalidArgument, match=rf"give {key}= to the optimizer"):
        alone(
            config_of(gradient_clipping=2.0),
            model=model,
            model_parameters=[{"params": list(model.parameters()), key: value}],
        )


def test_a_maximum_norm_of_0_in_a_file_is_accepted() -> None:
    params = {"lr": 0.01, "freeze_step": 3, "max_grad_norm": 0.0}
    alone(config_of(optimizer={"type": "OneBitAdam", "params": params})).destroy()


# ---- backends


@pytest.mark.parametrize("name", ["nccl", "hccl", "gloo"])
def test_names_of_backends_are_accepted_with_a_line(name: Any, caplog: Any) -> None:
    caplog.set_level("INFO", "thinwire")

    def run(comm: Any) -> list[str]:
        net, optimizer = cases.made(
            "OnebitAdam",
            comm,
            comm_backend_name=name,
            cuda_aware=True,
            deepspeed=object(),
        )
        return cases.train(net, optimizer, range(2), comm.rank)

    assert run_local_ranks(2, run) == [["exact"] * 2] * 2
    told = "comm_backend_name, cuda_aware, deepspeed: accepted for DeepSpeed's scripts"
    assert caplog.text.count(told) == 1
    assert "ranks exchange over local" in caplog.text

    def engine(comm: Any) -> None:
        params = {"lr": 0.01, "freeze_step": 3, "comm_backend_name": name}
        config = config_of(optimizer={"type": "OneBitAdam", "params": params})
        train(make(comm, config), range(1))

    run_local_ranks(2, engine)
    assert (
        caplog.text.count(f"comm_backend_name is {name}, and ranks exchange over") == 1
    )


@by_ranks(2)
def test_other_backends_are_refused_on_all_ranks(comm: Any) -> None:
    net = cases.model()
    for wrong in ("foo", 3):
        with pytest.raises(InvalidArgument, match="one of nccl, hccl, mpi, gloo"):
            cases.make("OnebitAdam", net.parameters(), comm, comm_backend_name=wrong)
    params = {"comm_backend_name": "foo"}
    config = config_of(optimizer={"type": "OneBitAdam", "params": params})
    with pytest.raises(InvalidArgument, match="nccl, hccl, mpi, gloo"):
        make(comm, config)


def test_the_backend_of_a_configuration_is_known_before_it_is_read(
    tmp_path: Path,
) -> None:
    params = {"comm_backend_name": "mpi"}
    tree = {"optimizer": {"type": "OneBitAdam", "params": params}}
    assert named_backend(tree) == "mpi"
    assert named_backend(lambda: tree) == "mpi"
    config = thinwire.Config.from_json(str(tree).replace("'", '"'))[0]
    assert named_backend(config) == "mpi"
    for wrong in ({}, {"optimizer": []}, "/no/such/file", 3):
        assert named_backend(wrong) is None
    file = tmp_path / "c.json"
    for value, text in (("[" * 3000 + "]" * 3000, "32 deep"), ("1" * 5000, "not JSON")):
        file.write_text(f'{{"dump_state": {value}}}')
        assert named_backend(file) is None
        with pytest.raises(InvalidArgument, match=f"c.json: .*{text}"):
            read_config(file)
