# SPDX-License-Identifier: Apache-2.0
"""Recorded trajectories of DeepSpeed's optimizers: tests/golden/README.md."""

from __future__ import annotations

import functools
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


class Recording:
    """One case: its settings, and arrays by file name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())

    def array(self, name: str) -> torch.Tensor:
        """float32, in the shape that was recorded."""
        about = self.meta["files"][name]
        data = bytearray((self.folder / name).read_bytes())
        return torch.frombuffer(data, dtype=torch.float32).view(about["shape"])

    def parameters(self, values: torch.Tensor) -> list[torch.nn.Parameter]:
        """The tensors of the case, cut out of a flat array."""
        return [
            torch.nn.Parameter(self._cut(values, t).clone())
            for t in self.meta["tensors"]
        ]

    def cut(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat array, one per tensor."""
        return [self._cut(values, tensor) for tensor in self.meta["tensors"]]

    def groups(self, parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        """Returns the groups that an optimizer takes, each with its own settings."""
        groups = []
        for number, group in enumerate(self.meta["groups"]):
            members = [
                p
                for p, tensor in zip(parameters, self.meta["tensors"], strict=True)
                if tensor["group"] == number
            ]
            known = ("lr", "betas", "eps", "weight_decay", "non_freeze")
            settings = {key: group[key] for key in known if key in group}
            if "mask" in group:
                rows = group["mask"]["rows_from"]
                settings["exp_avg_mask"] = [_mask(p, rows) for p in members]
            groups.append({"params": members, **settings})
        return groups

    @staticmethod
    def _cut(values: torch.Tensor, tensor: dict[str, Any]) -> torch.Tensor:
        return values.narrow(0, tensor["off"], tensor["n"]).view(tensor["shape"])


def _mask(parameter: torch.Tensor, rows_from: int) -> torch.Tensor:
    mask = torch.zeros(parameter.shape)
    mask[:rows_from] = 1
    return mask


@functools.cache
def recording(name: str) -> Recording:
    """A case by the name of its folder; the archive is unpacked once per process."""
    return Recording(_unpacked() / name)


@functools.cache
def _unpacked() -> Path:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN / "recordings.py")
    assert spec is not None and spec.loader is not None
    golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(golden)
    folder = tempfile.TemporaryDirectory(prefix="thinwire-recordings-")
    _kept.append(folder)
    golden.unpack(Path(folder.name))
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
