# SPDX-License-Identifier: Apache-2.0
"""Parameters of a host's ranks. Only the leader has copies in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import _core
from ..._staging import Staging
from ...comm.host_group import HostGroup
from .._staging import StagedEngineMemory

_BUCKET_BYTES = 25 << 20
"""Most bytes per message in the device's group, unless one parameter is larger."""


class LeaderMemory(StagedEngineMemory):
    """StagedEngineMemory that sends new values to the host's other ranks."""

    def __init__(self, hosts: HostGroup, *rest: Any) -> None:
        super().__init__(*rest)
        self._hosts = hosts

    def require_gradients(self, at_start: bool) -> None:
        self.require_added_up(at_start)

    def publish(self) -> None:
        """Sends parameters to the device and the followers. Collective in the host."""
        super().publish()
        hand_back(self._hosts, self.parameters)


class FollowerMemory(LeaderMemory):
    """LeaderMemory of a follower, without arrays on the host."""

    def __init__(
        self,
        hosts: HostGroup,
        parameters: Sequence[torch.Tensor],
        layout: _core.Layout,
        dtype: torch.dtype,
        num_wide: int = 0,
    ) -> None:
        """Local. Later, attach_parameters() converts the parameters to their dtypes."""
        self._hosts = hosts
        self.parameters = list(parameters)
        self.names = layout.names
        self._offsets = layout.offsets
        self.keeps_gradients = True  # so that no ring is allocated for gradients
        self.staging = Staging(parameters[0].device)
        self.params = self.grads = torch.empty(0, dtype=dtype)
        self.wide_params = self.wide_grads = torch.empty(0)
        self._num_wide = num_wide
        self._values = [
            torch.empty(
                p.shape,
                dtype=torch.float32 if k >= len(parameters) - num_wide else dtype,
                device="meta",
            )
            for k, p in enumerate(parameters)
        ]
        self._gradients = []

    def marks(self) -> None:
        """Returns None, because the leader detects writes that all ranks make."""

    def read_parameters(self) -> bool:
        return False

    def make_writable(self) -> bool:
        return False

    def publish(self) -> None:
        hand_back(self._hosts, self.parameters)


def buckets_of(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Returns lists of indices of tensors that are sent together, starting with the
    last tensor. The tensors of a list have one dtype.
    """
    buckets: list[list[int]] = []
    size = 0
    for k in reversed(range(len(tensors))):
        tensor = tensors[k]
        size += tensor.numel() * 4
        is_alike = buckets and tensors[buckets[-1][0]].dtype == tensor.dtype
        if not is_alike or size > _BUCKET_BYTES:
            buckets.append([])
            size = tensor.numel() * 4
        buckets[-1].append(k)
    return buckets


@torch.no_grad()
def hand_back(hosts: HostGroup, parameters: Sequence[torch.Tensor]) -> None:
    """Queues sending the leader's parameters to the followers. Collective in the
    host.
    """
    for bucket in buckets_of(parameters):
        members = [parameters[k] for k in bucket]
        size = sum(p.numel() for p in members)
        if hosts.is_leader:
            flat = torch.cat([p.detach().reshape(-1) for p in members])
        else:
            flat = torch.empty(size, dtype=members[0].dtype, device=members[0].device)
        hosts.broadcast(flat)
        if not hosts.is_leader:
            for p, part in zip(members, flat.split([p.numel() for p in members])):
                p.copy_(part.view(p.shape))
