# SPDX-License-Identifier: Apache-2.0
r"""Turns a universal checkpoint of DeepSpeed with Adam into a folder for Thinwire.

    python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state \
        --input_folder RUN/TAG --output_folder IN
    python states_from_deepspeed.py IN OUT

The first command is DeepSpeed's own, for ZeRO stages 1 and 2. All that the second reads
loads with torch.load(weights_only=True), which runs no code:

    zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt    {"param": a whole tensor}
    zero/NAME/step.pt                               steps applied
    mp_rank_00_model_states.pt                      buffers and frozen parameters

zero/optimizer_state.pt, which holds an object of DeepSpeed's, is not needed. OUT gets
model.safetensors, whose weights are the fp32 masters, and optimizer.safetensors.

Not read: stage 3, whose files have no steps, and what tensor or pipeline parallelism has
split. Stage 0 in fp32 is for states_from_torch.py. 1-bit optimizers of DeepSpeed clear
their residuals when they load, so their files have none to bring.
"""

from states_from_torch import MOMENTS, convert, load


def read(folder):
    """Weights, and the state of each trained parameter, by name."""
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


if __name__ == "__main__":
    convert(read, __doc__)
