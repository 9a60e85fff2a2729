# SPDX-License-Identifier: Apache-2.0
"""An Engine seen as its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .._agreement import agreed
from ..errors import FailedPrecondition, Unavailable
from ._base import EngineBase


class ModuleParts(EngineBase):
    """Parameters and state dicts under the module's own names."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if name != "module" and "module" in modules:
                return getattr(modules["module"], name)
            raise

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Returns the module's parameters."""
        return self.module.parameters(recurse)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Returns the module's parameters with the module's names."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Returns the module's state dict."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads weights like load_module_state_dict(). Raises FailedPrecondition for
        `assign`.
        """
        if assign:
            raise FailedPrecondition(
                "load_state_dict: assign=True would replace the parameters that the "
                "engine trains; leave it out"
            )
        return self.load_module_state_dict(state_dict, strict)

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Returns the module's state_dict(), if asked without untrained tensors. Local."""
        state: dict[str, Any] = self.module.state_dict(
            destination=destination,  # type: ignore[arg-type]
            prefix=prefix,
            keep_vars=keep_vars,
        )
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        custom_load_fn: Any = None,
        fetch_z3_params: bool = False,
    ) -> Any:
        """Loads weights into the module and into masters; moments do not change. Between
        windows, with the same values on all ranks. Local; with ZeRO collective.

        Raises FailedPrecondition inside a window of accumulation, and Unavailable for
        `custom_load_fn`.
        """
        if custom_load_fn is not None:
            raise Unavailable("custom_load_fn: must be None, it is not supported")
        if self._backwards:
            raise FailedPrecondition(
                "load_module_state_dict: inside a window of accumulation; call step() first"
            )

        def take() -> Any:
            return self.module.load_state_dict(state_dict, strict)

        is_collective = self._config.zero.stage > 0
        result = agreed(self._comm, take) if is_collective else take()
        self._memory.home()
        self._native.read_masters()
        self._written(is_behind=False)
        return result
