# SPDX-License-Identifier: Apache-2.0
r"""Turns a checkpoint of DeepSpeed into a folder for Thinwire.

For Adam with ZeRO stage 1 or 2, from a universal checkpoint:

    python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state \
        --input_folder RUN/TAG --output_folder IN
    python states_from_deepspeed.py IN OUT

The first command is DeepSpeed's own. The second loads all files with
torch.load(weights_only=True), which runs no code:

    zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt    {"param": a whole tensor}
    zero/NAME/step.pt                               steps applied
    mp_rank_00_model_states.pt                      buffers and frozen parameters

zero/optimizer_state.pt, which holds an object of DeepSpeed's, is not needed. OUT gets
model.safetensors, whose weights are the fp32 masters, and optimizer.safetensors.

For 1-bit Adam, 1-bit LAMB or 0/1 Adam, from the file of stage 0, in fp32 or fp16, saved
before, at or after the freeze:

    python states_from_deepspeed.py RUN/TAG/mp_rank_00_model_states.pt OUT --freeze-step N

N is the freeze_step of that run. The first step of a run sets up its buffers, so a frozen
variance v has seen N - 1 gradients. OUT gets the v that has the same bias-corrected value
after all steps. 0/1 Adam counts its updates of v itself; --var-update-scaler is that of
its run. OUT is the state of Adam or LAMB, so the new run begins with both moments. A 1-bit
optimizer freezes v again by its own freeze_step, after one exact step if that has passed.
OUT has the coefficients that 1-bit LAMB has averaged or frozen. 0/1 Adam must have been
saved in a sync, when all ranks have the same parameters.

    python states_from_deepspeed.py RUN/TAG/mp_rank_00_model_states.pt OUT \
        --semantics deepspeed

This OUT has exact copies. It loads into a run with `deepspeed` semantics and the same
optimizer, which then computes what DeepSpeed computes after it has loaded the file. The
loss scale of fp16 begins anew.

The file of Adam or LAMB in fp16 without ZeRO needs no option.

A file of several groups needs "names", as states_from_torch.py says. In fp16 1-bit Adam
and 0/1 Adam must have one group; the weights of OUT are the fp32 masters.

It does not read stage 3, whose files have no steps, nor what tensor or pipeline
parallelism has split. For stage 0 of Adam in fp32 you can also use states_from_torch.py.
1-bit optimizers of DeepSpeed clear their residuals when they load, so OUT has none.
"""

import math

import states_from_torch
from states_from_torch import (
    MOMENTS,
    arguments,
    convert,
    load,
    low_bit_key,
    untied,
)


def read(given):
    """Returns weights, and the state of each trained parameter, by name."""
    if given.checkpoint.is_dir():
        return read_universal(given.checkpoint)
    return read_stage_0(given)


def read_universal(folder):
    files = list(folder.glob("mp_rank_*_model_states.pt"))
    model = load(files[0]) if len(files) == 1 else {}
    names = sorted(path.parent.name for path in folder.glob("zero/*/fp32.pt"))
    if not names or model.get("module") is None:
        raise ValueError(
            f"{folder} must have zero/*/fp32.pt and one mp_rank_*_model_states.pt with the "
            "whole module: a universal checkpoint of ZeRO stage 1 or 2, without tensor or "
            "pipeline parallelism"
        )
    tied = model.get("shared_params") or {}
    weights = {name: t for name, t in model["module"].items() if name not in tied}
    states = {}
    for name in names:
        zero = folder / "zero" / name
        weights[name] = load(zero / "fp32.pt")["param"]
        states[name] = {key: load(zero / f"{key}.pt")["param"] for key in MOMENTS}
        states[name]["step"] = load(zero / "step.pt")
    return weights, states


def read_stage_0(given):
    saved = load(given.checkpoint)
    wrapper = saved.get("optimizer") or {}
    is_16_bit = "optimizer_state_dict" in wrapper  # DeepSpeed's fp16 optimizers have it
    if is_16_bit:
        saved = in_fp32(saved, wrapper)
    weights, states = states_from_torch.read(given.checkpoint, saved)
    is_exact_copy = given.semantics == "deepspeed"
    if low_bit_key(states) is None:
        if is_exact_copy:
            raise ValueError(
                f"{given.checkpoint} is not of a 1-bit optimizer of DeepSpeed, which "
                "--semantics deepspeed needs"
            )
        return weights, states
    if is_exact_copy:
        for name, state in states.items():
            require_sync(name, state)
            if is_16_bit:
                state["masters"] = weights[name]
        return weights, states
    groups = saved["optimizer"]["param_groups"]
    rates = {float(group["betas"][1]) for group in groups}
    if len(rates) != 1:
        raise ValueError(
            f"betas[1] must be the same in all groups, got {sorted(rates)}"
        )
    beta2 = rates.pop()
    return weights, {
        name: moments(name, state, beta2, given) for name, state in states.items()
    }


def in_fp32(saved, wrapper):
    """Returns the file like that of a run in fp32: its weights are the masters, and no
    group is one flat tensor."""
    weights, buffers = untied(saved["module"]), set(saved.get("buffer_names") or ())
    names = saved.get("names", [name for name in weights if name not in buffers])
    optimizer = wrapper["optimizer_state_dict"]
    if "fp32_groups_flat" in wrapper:  # 1-bit LAMB's groups are not flat
        if len(optimizer["param_groups"]) != 1:
            raise ValueError("a file in fp16 must have one group of parameters")
        (flat,) = wrapper["fp32_groups_flat"]
        shapes = [weights[name].shape for name in names]
        masters = split(flat, shapes)
        optimizer = unflattened(optimizer, shapes)
    else:
        masters = [tensor for group in wrapper["fp32_groups"] for tensor in group]
    if len(masters) != len(names):
        raise ValueError(f"the file must have 'names' of {len(masters)} parameters")
    weights.update(zip(names, masters))
    return {"model": weights, "optimizer": optimizer, "names": names}


def split(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    if flat.numel() != sum(sizes):
        raise ValueError(
            f"a flat group has {flat.numel()} elements, its parameters {sum(sizes)}: the "
            "file must have 'names' of those that are trained"
        )
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes)]


def unflattened(optimizer, shapes):
    """Returns the state dict of the one group, with the flat arrays cut into those of
    its parameters."""
    (group,), (entry,) = optimizer["param_groups"], optimizer["state"].values()
    own = [dict(entry) for _ in shapes]
    for key in (*MOMENTS, "momentum_accumulator"):
        if key in entry:
            for state, part in zip(own, split(entry[key], shapes)):
                state[key] = part
    numbers = [*range(len(shapes))]
    return {
        "state": dict(zip(numbers, own)),
        "param_groups": [{**group, "params": numbers}],
    }


def moments(name, state, beta2, given):
    """Returns Adam's or LAMB's states, with v as if it had seen every step's gradient."""
    if not state:
        return state  # never stepped
    require_sync(name, state)
    step, seen = int(state["step"]), updates_of_variance(name, state, given)

    def of_all_steps(variance, seen):
        whole, part = (1 - beta2**count for count in (step, seen))
        return variance.float() * (whole / part if seen else 1.0)

    made = {"exp_avg": state["exp_avg"], "step": step}
    made["exp_avg_sq"] = of_all_steps(state["exp_avg_sq"], seen)
    if "lamb_coeff_freeze" in state:
        made["lamb_coeff_freeze"] = state["lamb_coeff_freeze"]
        made["lamb_coeff_count"] = seen
    if "scaling_coeff" in state:  # from the first compressed step on
        made["last_factor"] = state["last_factor"]
        made["exp_avg_sq_fresh"] = of_all_steps(state["exp_avg_sq_fresh"], step - 1)
    return made


def require_sync(name, state):
    local = state.get("momentum_accumulator")
    if local is not None and local.any():
        raise ValueError(
            f"momentum_accumulator of '{name}' is not 0: saved between two syncs, when "
            "every rank has parameters of its own; save after a sync"
        )


def updates_of_variance(name, state, given):
    step = int(state["step"])
    if "var_interval" in state:  # the interval doubles after this many updates
        doublings = math.log2(int(state["var_interval"]))
        count = int(doublings) * given.var_update_scaler + int(state["var_counter"])
        if doublings != int(doublings) or count > step:
            raise ValueError(
                f"var_interval {int(state['var_interval'])} and var_counter "
                f"{int(state['var_counter'])} of '{name}' do not fit {step} steps with "
                f"--var-update-scaler {given.var_update_scaler}"
            )
        return count
    if given.freeze_step is None:
        raise ValueError(
            "--freeze-step is needed, that of the run: the file does not say how many "
            "gradients the frozen variance has seen"
        )
    return max(0, min(step, given.freeze_step) - 1)  # the first step has none


def parse():
    parser = arguments(__doc__)
    parser.add_argument("--freeze-step", type=at_least_one, metavar="N")
    parser.add_argument(
        "--var-update-scaler", type=at_least_one, default=16, metavar="K"
    )
    semantics = ("corrected", "deepspeed")
    parser.add_argument("--semantics", choices=semantics, default="corrected")
    return parser


def at_least_one(text):
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


if __name__ == "__main__":
    convert(read, parse())
