# SPDX-License-Identifier: Apache-2.0
"""A module that looks like the module inside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class ModuleView(torch.nn.Module):
    """Exposes the parameters, states and attributes of its `module`."""

    module: torch.nn.Module

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

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Returns the module's state_dict(), without frozen parameters if asked. Local."""
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
