# SPDX-License-Identifier: Apache-2.0
"""Turns a checkpoint with torch.optim's Adam or AdamW into a folder for Thinwire.

    python states_from_torch.py IN.pt OUT

IN.pt is torch.save() of {"model": model.state_dict(), "optimizer":
optimizer.state_dict()}, or DeepSpeed's mp_rank_00_model_states.pt of stage 0 in fp32. It
is read with torch.load(weights_only=True), which runs no code. OUT gets
model.safetensors and optimizer.safetensors.

An optimizer's state dict numbers the parameters in the order of its groups. It has names
if the optimizer was given named_parameters(). If not, and there are several groups or
buffers, IN.pt must have them in that order, as "names":

    name_of = {p: name for name, p in model.named_parameters()}
    names = [name_of[p] for group in optimizer.param_groups for p in group["params"]]

Otherwise they are the names of the model's tensors, in the model's order. If all names
begin with DistributedDataParallel's "module.", that prefix is removed. RAdam has the
same state as Adam, and is converted like it.

Needs torch and safetensors. A run that continues from OUT must have the same names:

    optimizer = thinwire.AdamW(model.named_parameters(), ...)
    thinwire.load(OUT, optimizer, module=model)
"""

import argparse
import math
import pickle
from pathlib import Path

import torch

try:
    from safetensors.torch import save_file
except ModuleNotFoundError:
    raise SystemExit("safetensors is missing: pip install safetensors") from None

MOMENTS = ("exp_avg", "exp_avg_sq")
MORE = {  # of some optimizers of DeepSpeed
    "masters": torch.float32,
    "exp_avg_sq_fresh": torch.float32,
    "lamb_coeff_freeze": torch.float64,
    "lamb_coeff_count": torch.int64,
    "last_factor": torch.float64,
    "scaling_coeff": torch.float64,
}
# DeepSpeed's 1-bit optimizers: some parameter has one of these, whatever the stage.
LOW_BIT = ("tensor_size", "worker_error", "lamb_coeff_freeze")
WRAPPER = "module."  # DistributedDataParallel puts this before names
OTHER = "use states_from_deepspeed.py IN.pt OUT --freeze-step N, of a 1-bit optimizer"


def load(path):
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except EOFError:
        raise ValueError(f"{path} ends too early") from None
    except pickle.UnpicklingError:
        why = "is no checkpoint of tensors alone: weights_only=True refuses it"
        raise ValueError(f"{path} {why}") from None


def read(path, saved):
    """Returns weights, and the state of each parameter, by name."""
    model = saved.get("model", saved.get("module"))  # DeepSpeed's name
    optimizer = saved.get("optimizer")
    if "optimizer_state_dict" in (optimizer or {}):
        raise ValueError(f"{path} is of DeepSpeed's fp16 optimizers: {OTHER}")
    if not model or "param_groups" not in (optimizer or {}):
        raise ValueError(f"{path} must have state dicts 'model' and 'optimizer'")
    weights = untied(model)
    groups = optimizer["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    names = [name for group in groups for name in group.get("param_names", ())]
    names = names or saved.get("names", list(weights) if len(groups) == 1 else [])
    if len(names) != len(numbers):
        raise ValueError(f"{path} must have 'names' of {len(numbers)} parameters")
    if all(name.startswith(WRAPPER) for name in weights):
        weights = {name.removeprefix(WRAPPER): t for name, t in weights.items()}
        names = [name.removeprefix(WRAPPER) for name in names]
    states = optimizer["state"]
    return weights, {n: states.get(number, {}) for n, number in zip(names, numbers)}


def low_bit_key(states):
    """Returns (name, key) that show a 1-bit optimizer of DeepSpeed, or None."""
    found = ((n, key) for key in LOW_BIT for n, state in states.items() if key in state)
    return next(found, None)


def read_torch(given):
    weights, states = read(given.checkpoint, load(given.checkpoint))
    if found := low_bit_key(states):
        name, key = found
        raise ValueError(
            f"'{name}' has {key}: of a 1-bit optimizer of DeepSpeed: {OTHER}"
        )
    return weights, states


def untied(model):
    """Returns one name of each set of tied tensors."""
    first = {}
    for name, tensor in model.items():
        place = tensor.data_ptr() if tensor.numel() else name
        first.setdefault((place, tensor.shape), name)
    return {name: model[name] for name in first.values()}


def checked(weights, states):
    """Returns the tensors of optimizer.safetensors."""
    tensors, steps = {}, {}
    for name, state in states.items():
        for key in (*MOMENTS, "step"):
            if key not in state:
                raise ValueError(f"'{name}' has no {key}: not Adam's, or never stepped")
        for key, what in (("max_exp_avg_sq", "AMSGrad"), ("mu_product", "NAdam")):
            if key in state:
                raise ValueError(f"'{name}' has {key}: {what} is not supported")
        for key in MOMENTS:
            if name not in weights or state[key].shape != weights[name].shape:
                raise ValueError(f"{key} of '{name}' must have the shape of a weight")
            moment = tensors[f"{key}/{name}"] = state[key].float()
            least = 0 if key == "exp_avg_sq" else -math.inf
            if not (moment.isfinite() & (moment >= least)).all():
                bound = " and at least 0" if least == 0 else ""
                raise ValueError(f"{key} of '{name}' must be finite{bound}")
        for key in MORE.keys() & state.keys():
            tensors[f"{key}/{name}"] = torch.as_tensor(state[key], dtype=MORE[key])
        step = torch.as_tensor(state["step"])
        if step.numel() != 1 or not (step >= 0 and step == step.floor()):
            got = step.tolist()
            raise ValueError(f"step of '{name}' must be a whole number, got {got}")
        steps.setdefault(int(step), name)
    if len(steps) != 1:
        each = ", ".join(f"{step} of '{name}'" for step, name in steps.items())
        raise ValueError(f"all parameters must have the same step, got {each or None}")
    return tensors | {"step": torch.tensor(*steps)}


def arguments(doc):
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", metavar="IN", type=Path)
    parser.add_argument("folder", metavar="OUT", type=Path)
    return parser


def convert(read, parser):
    """Runs the program, which writes what `read` returns for the arguments."""
    given = parser.parse_args()
    try:
        weights, states = read(given)
        files = {"model": weights, "optimizer": checked(weights, states)}
    except (OSError, ValueError) as error:
        parser.error(str(error))  # exits with 2
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        parser.error(f"{given.checkpoint} is not what this reads: {error!r}")
    metadata = {"format": "pt"} | {
        "semantics": getattr(given, "semantics", "corrected")
    }
    given.folder.mkdir(parents=True, exist_ok=True)
    for file, tensors in files.items():
        own = {  # safetensors takes neither strides nor shared memory
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        save_file(own, given.folder / f"{file}.safetensors", metadata)
    step = files["optimizer"]["step"]
    print(f"{given.folder}: states of {len(states)} tensors after {step} steps")


if __name__ == "__main__":
    convert(read_torch, arguments(__doc__))
