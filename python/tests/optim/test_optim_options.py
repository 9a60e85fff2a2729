# SPDX-License-Identifier: Apache-2.0
"""Arguments: defaults are C++'s, each reaches the optimizer, wrong ones are named."""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace
from typing import Any

import optim_cases as cases
import pytest
import torch
from local_ranks import by_ranks
from thinwire import _core
from thinwire.comm import run_local_ranks
from thinwire.errors import InvalidArgument

pytestmark = pytest.mark.quick

KINDS = [*dict.fromkeys(kind for kind, _ in cases.KINDS.values())]
# Python has no use for these, or sets them from something else.
OF_DEEPSPEED = ("OnebitAdam", "OnebitLamb", "ZeroOneAdam")
ONLY_PYTHON = {"params", "process_group", "broadcast", "telemetry", "outer"}
ONLY_PYTHON |= {"cuda_aware", "deepspeed"}
# Another value than the default of everything that ranks must have in common.
OTHER: dict[str, Any] = {
    "lr": 0.5,
    "betas": (0.8, 0.9),
    "eps": 1e-3,
    "weight_decay": 0.25,
    "max_grad_norm": 2.0,
    "bias_correction": False,
    "eps_inside_sqrt": True,
    "verify_every": 3,
    "skip_nonfinite": False,
    "max_coeff": 5.0,
    "min_coeff": 0.5,
    "coeff_beta": 0.5,
    "factor_max": 2.0,
    "factor_min": 0.25,
    "factor_threshold": 0.5,
    "freeze_step": 7,
    "lr_warmup_steps": 3,
    "total_steps": 3000,
    "min_freeze_step": 60,
    "max_freeze_step": 900,
    "freeze_ratio": 0.5,
    "warmup_bits": 4,
    "denom_floor": 0.1,
    "residual_dtype": torch.bfloat16,
    "var_freeze_step": 9,
    "var_update_scaler": 3,
    "local_step_scaler": 5,
    "local_step_clipper": 6,
    "denominator_bits": 4,
    "hierarchy": "flat",
    "ranks_per_host": 1,
    "lagged_clipping": True,
    "compressed_under_next_step": True,
    "outer": {"sync_every": 3},
    "bits": 8,
    "low_rank": 8,
    "first_steps": 7,
    "first_bits": 8,
}
# Values for classes whose default OTHER has.
OTHER_OF = {("LeanOnebitAdam", "residual_dtype"): torch.float32}
# Results do not depend on them, or ranks may differ in them.
FREE = {
    "params",
    "process_group",
    "threads",
    "bucket_elements",
    "broadcast",
    "telemetry",
}
FREE |= {"comm_backend_name", "cuda_aware", "deepspeed"}


def one() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(33))]


@pytest.mark.parametrize("kind", KINDS)
def test_keywords_are_those_of_cpp_with_its_defaults(kind: Any) -> None:
    config = _core.Config()
    config.set_optimizer(kind.__name__)
    parameters = inspect.signature(kind).parameters
    known = config.keywords()
    assert parameters.keys() - ONLY_PYTHON == known.keys()
    for name, value in known.items():
        if name not in ("bucket_elements", "residual_dtype"):
            assert parameters[name].default == value, name
    assert parameters["bucket_elements"].default is None
    lean = kind.__name__ == "LeanOnebitAdam"
    if "residual_dtype" in known:
        residuals = torch.bfloat16 if lean else torch.float32
        assert parameters["residual_dtype"].default == residuals


OF = {kind: inspect.signature(kind).parameters for kind in KINDS}
CASES = [(kind, name) for kind in KINDS for name in OF[kind] if name not in FREE]


@pytest.mark.parametrize("kind,name", CASES, ids=lambda x: getattr(x, "__name__", x))
def test_every_option_reaches_the_optimizer(kind: Any, name: str) -> None:
    """Ranks that differ in it are told so by C++, which compares all that it was given."""
    base: dict[str, Any] = {}
    if name in (
        "lr_warmup_steps",
        "min_freeze_step",
        "max_freeze_step",
        "freeze_ratio",
    ):
        base["freeze_step"] = "auto"
    if name.startswith("first_") or (name == "total_steps" and "bits" in OF[kind]):
        base["low_rank"] = 4

    def body(comm: Any) -> str:
        value = OTHER_OF.get((kind.__name__, name), OTHER[name])
        other = {name: value} if comm.rank == 1 else {}
        try:
            kind(one(), process_group=comm, **base, **other)
        except InvalidArgument as error:
            return str(error)
        return ""

    texts = run_local_ranks(2, body)
    assert all("same on all ranks" in text for text in texts), texts


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_keywords_are_named_with_the_nearest(kind: Any) -> None:
    with pytest.raises(TypeError, match="'max_grad_nrm'; did you mean 'max_grad_norm'"):
        kind(one(), max_grad_nrm=1.0)
    with pytest.raises(TypeError, match="'weight_decy'; did you mean 'weight_decay'"):
        kind(one(), weight_decy=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'zzz'$"):
        kind(one(), zzz=1)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.__name__ in OF_DEEPSPEED])
def test_deepspeeds_engine_may_come_second(kind: Any) -> None:
    engine = SimpleNamespace(mpu=None)
    for handle in (engine, None):
        assert kind(one(), handle, lr=0.5).param_groups[0]["lr"] == 0.5
    assert kind(one(), 0.5, (0.8, 0.9)).param_groups[0]["betas"] == (0.8, 0.9)
    for args, keywords in (
        ((engine, 0.5), {}),
        ((engine,), {"deepspeed": engine}),
        ((0.5,), {"lr": 0.5}),
        ((0.5, (0.8, 0.9), 1e-3, 0.1, 7), {}),
    ):
        with pytest.raises(TypeError, match="name the others|multiple values"):
            kind(one(), *args, **keywords)


INSTEAD = {
    "variance_refresh": "later `freeze_step`",
    "calibrated_clipping": "leave it out",
    "scale": "leave it out",
    "exchanged": "leave it out",
    "compressed_during_backward": "use `compressed_under_next_step`",
}


@pytest.mark.parametrize("name", INSTEAD)
def test_keywords_of_earlier_versions_say_what_to_write(name: str) -> None:
    text = f"no keyword '{name}' any more: .*{INSTEAD[name]}"
    with pytest.raises(TypeError, match=text):
        cases.make("OnebitAdam", one(), **{name: None})


def test_a_key_of_configurations_is_no_keyword() -> None:
    text = "no keyword 'semantics': set thinwire.semantics in a configuration"
    with pytest.raises(TypeError, match=text):
        cases.make("AdamW", one(), semantics="deepspeed")


@pytest.mark.parametrize(
    "name", ["amsgrad", "maximize", "foreach", "fused", "capturable", "differentiable"]
)
def test_switches_of_torch(name: str) -> None:
    for off in (False, None):
        cases.make("AdamW", one(), **{name: off}).close()
    with pytest.raises(InvalidArgument, match=f"{name}: must be False or None, "):
        cases.make("AdamW", one(), **{name: True})
    text = rf"param_groups\[0\]\['{name}'\] must be False or None: "
    with pytest.raises(InvalidArgument, match=text):
        cases.make("AdamW", [{"params": one(), name: True}])


WRONG_TYPES: dict[str, dict[str, Any]] = {
    'freeze_step must be an integer >= 1 or "auto", got "soon"': {
        "freeze_step": "soon"
    },
    'freeze_step must be an integer >= 1 or "auto", got true': {"freeze_step": True},
    "lr: must be a number, got '1e-3'": {"lr": "1e-3"},
    "lr: must be a number, got True": {"lr": True},
    r"threads must be an integer in \[0, 1024\], got true": {"threads": True},
    "total_steps must be an integer >= 1, got 2.5": {"total_steps": 2.5},
    'lr_warmup_steps must be an integer >= 0, got "x"': {"lr_warmup_steps": "x"},
    "broadcast: must be bool, got 'no'": {"broadcast": "no"},
    r"^betas must be an array of two numbers in \[0, 1\), got \[0.9, null\]": {
        "betas": (0.9, None)
    },
    "^outer must be a dict or None, got 3$": {"outer": 3},
    "^outer: got an unexpected key 'sync_ever'; did you mean 'sync_every'?": {
        "outer": {"sync_ever": 3}
    },
    r"^outer\['momentum'\] must be .* in \[0, 1\), got \"x\"": {
        "outer": {"sync_every": 3, "momentum": "x"}
    },
}
WRONG_VALUES: dict[str, dict[str, Any]] = {
    'freeze_step must be an integer >= 1 or "auto", got 0': {"freeze_step": 0},
    'freeze_step must be an integer >= 1 or "auto", got -1': {"freeze_step": -1},
    "^total_steps must be .* < 2.63.*, got 9223372036854775808$": {
        "total_steps": 2**63
    },
    r"^threads must be an integer in \[0, 1024\], got": {"threads": 2**31},
    'hierarchy must be one of auto, flat, by_host, got "ring"': {"hierarchy": "ring"},
    "residual_dtype: must be": {"residual_dtype": torch.int8},
    "^lr must be finite.*-1": {"lr": -1.0},
    "^lr must be finite": {"lr": 10**400},
    r"^lr must be finite and >= 0 in fp32, got 1e\+39": {"lr": 1e39},
    "^weight_decay must be finite.*3.5e": {"weight_decay": 3.5e38},
    r"^betas must be an array of two numbers in \[0, 1\), got \[0.9, 1.0\]": {
        "betas": (0.9, 1.0)
    },
    "^max_grad_norm must be finite, got inf": {"max_grad_norm": float("inf")},
    "denom_floor must be a finite number >= 0, got -0.5": {"denom_floor": -0.5},
    "^bucket_elements must be an integer >= 0, got -1$": {"bucket_elements": -1},
    "^bucket_elements must be an integer >= 0 and < 2.63": {"bucket_elements": 2**70},
    r"^outer must have the key 'sync_every'": {"outer": {"momentum": 0.5}},
    r"^outer\['sync_every'\] must be >= 1, got 0": {"outer": {"sync_every": 0}},
}


def test_wrong_values_are_named_and_nothing_moves() -> None:
    params = one()
    before = params[0].data_ptr()
    for error, table in ((TypeError, WRONG_TYPES), (InvalidArgument, WRONG_VALUES)):
        for text, keywords in table.items():
            with pytest.raises(error, match=text):
                cases.make("OnebitAdam", params, **keywords)
            assert params[0].data_ptr() == before


def test_a_refusal_on_one_rank_reaches_all() -> None:
    def body(comm: Any) -> str:
        keywords = {"hierarchy": "ring"} if comm.rank == 1 else {}
        with pytest.raises(InvalidArgument) as caught:
            cases.make("OnebitAdam", one(), comm, **keywords)
        return str(caught.value)

    texts = run_local_ranks(3, body)
    assert texts[1].startswith("hierarchy must be")
    assert all("rank 1 refused" in texts[r] and "hierarchy" in texts[r] for r in (0, 2))


@by_ranks(2)
def test_a_group_may_stay_exact(comm: Any) -> None:
    first, second = one()[0], one()[0]
    groups = [{"params": [first]}, {"params": [second], "non_freeze": True}]
    optimizer = cases.make("OnebitAdam", groups, comm, freeze_step=1)
    for _ in range(3):
        first.grad = second.grad = torch.full((33,), 1.0 + comm.rank)
        optimizer.step()
    entries = optimizer.state_dict()["state"].values()
    assert all("exp_avg_sq" in entry for entry in entries)


GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "must be tensors, got 'x'": ("OnebitAdam", {"exp_avg_mask": "x"}),
    "must be tensors, got 3": ("OnebitAdam", {"exp_avg_mask": [3]}),
    r"\['non_freeze'\] must be true or false, got \"x\"": (
        "OnebitAdam",
        {"non_freeze": "x"},
    ),
    "elements must be 0 or 1": ("OnebitAdam", {"exp_avg_mask": torch.full((33,), 0.5)}),
    "'param.0' its elements must be 0 or 1": (
        "OnebitAdam",
        {"exp_avg_mask": torch.full((33,), math.nan)},
    ),
    "has no masks": ("AdamW", {"exp_avg_mask": torch.ones(33)}),
    "'non_freeze'.*no such option": ("ZeroOneAdam", {"non_freeze": True}),
    **{
        rf"param_groups\[0\]\['{key}'\] must be absent.* keyword of the constructor": (
            "OnebitAdam",
            {key: 3},
        )
        for key in (
            "freeze_step",
            "warmup_bits",
            "total_steps",
            "verify_every",
            "outer",
        )
    },
}


@pytest.mark.parametrize("value", [-1.0, math.nan, 1e39])
@pytest.mark.parametrize("key", ["lr", "weight_decay"])
def test_a_number_out_of_range_is_named_with_its_group(key: str, value: float) -> None:
    groups = [{"params": one()}, {"params": one(), key: value}]
    text = rf"^param_groups\[1\]\['{key}'\] must be finite and >= 0"
    with pytest.raises(InvalidArgument, match=text):
        cases.make("AdamW", groups)
    optimizer = cases.make("AdamW", [{"params": one()}, {"params": one()}])
    optimizer.param_groups[1][key] = value
    with pytest.raises(InvalidArgument, match=text):
        optimizer.step()


@pytest.mark.parametrize("text", GROUPS)
def test_wrong_values_of_groups_are_named(text: str) -> None:
    kind, group = GROUPS[text]
    with pytest.raises((TypeError, InvalidArgument), match=text):
        cases.make(kind, [{"params": one(), **group}])
    with pytest.raises(InvalidArgument, match="must have 'params', got"):
        cases.make(kind, [group])


@by_ranks(2)
def test_ranks_agree_on_who_broadcasts(comm: Any) -> None:
    with pytest.raises(InvalidArgument, match="broadcast="):
        cases.make("AdamW", one(), comm, broadcast=comm.rank == 0)
