# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training over thin wires.

The optimizers average over the ranks themselves, with one bit per element or less:

    optimizer = thinwire.OnebitAdam(model.parameters(), lr=4e-4, freeze_step=2000)

DeepSpeed's scripts call thinwire.initialize() instead. Names that need torch are
imported when they are first used.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._core import version as __version__
from .errors import (
    CommFailure,
    CorruptCheckpoint,
    DeviceFailure,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NonFinite,
    Unavailable,
)

if TYPE_CHECKING:
    from . import checkpoint, comm, compat, errors, integrations, optim
    from ._checkpoints import LoadReport
    from .amp import GradScaler
    from .checkpoint import load, resume, save
    from .comm import (
        Mpi4pyTransport,
        ProcessGroupTransport,
        broadcast_buffers,
        init_distributed,
        local_gradients,
        run_local_ranks,
        seeded,
    )
    from .config import Config
    from .engine import Engine, EngineReport, add_config_arguments, initialize
    from .hooks import FsdpHook, Hook, HookReport, ddp_hook, fsdp_hook
    from .optim import AdamW, Lamb, LeanOnebitAdam, OnebitAdam, OnebitLamb, ZeroOneAdam
    from .report import StepReport

_NAMES_IN = {
    "_checkpoints": "LoadReport",
    "amp": "GradScaler",
    "checkpoint": "load resume save",
    "comm": "Mpi4pyTransport ProcessGroupTransport broadcast_buffers init_distributed "
    "local_gradients run_local_ranks seeded",
    "config": "Config",
    "engine": "Engine add_config_arguments initialize",
    "hooks": "FsdpHook Hook ddp_hook fsdp_hook",
    "optim": "AdamW Lamb LeanOnebitAdam OnebitAdam OnebitLamb ZeroOneAdam",
    "report": "EngineReport HookReport StepReport",
}
_MODULE_OF = {
    name: module for module, names in _NAMES_IN.items() for name in names.split()
}
_MODULES = {"checkpoint", "comm", "compat", "integrations", "optim"}
_TORCH = (2, 8)

__all__ = [
    "AdamW",
    "CommFailure",
    "Config",
    "CorruptCheckpoint",
    "DeviceFailure",
    "Engine",
    "EngineReport",
    "Error",
    "FailedPrecondition",
    "FsdpHook",
    "GradScaler",
    "Hook",
    "HookReport",
    "InvalidArgument",
    "Lamb",
    "LeanOnebitAdam",
    "LoadReport",
    "Mpi4pyTransport",
    "NonFinite",
    "OnebitAdam",
    "OnebitLamb",
    "ProcessGroupTransport",
    "StepReport",
    "Unavailable",
    "ZeroOneAdam",
    "__version__",
    "add_config_arguments",
    "broadcast_buffers",
    "checkpoint",
    "comm",
    "compat",
    "ddp_hook",
    "errors",
    "fsdp_hook",
    "init_distributed",
    "initialize",
    "integrations",
    "load",
    "local_gradients",
    "optim",
    "resume",
    "run_local_ranks",
    "save",
    "seeded",
]


def _require_torch() -> None:
    """Raises ImportError if torch is too old, which pip permits with --no-deps."""
    import torch

    found = torch.__version__
    if tuple(int(part) for part in found.split(".")[:2]) < _TORCH:
        raise ImportError(
            f"thinwire needs torch {_TORCH[0]}.{_TORCH[1]} or newer; found {found}"
        )


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _MODULE_OF:
        _require_torch()
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    nearest = get_close_matches(name, __all__, 1, 0.8)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__
