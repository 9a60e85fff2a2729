# SPDX-License-Identifier: Apache-2.0
"""Lightning with a model on a device, in its strategy of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import devices
import pytest
import torch

SAVED, LAST = 4, 8


def train(out: str, where: str, resume: str | None = None) -> list[Any]:
    """The losses of steps, and the parameters at the end."""
    import lightning
    import thinwire
    from lightning.pytorch.accelerators import Accelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from thinwire.integrations.lightning import Checkpoint

    place = torch.device("cpu") if where == "cpu" else devices.device()

    class Machine(Accelerator):
        """Lightning itself knows the devices of makers only."""

        def setup_device(self, device: torch.device) -> None: ...
        def teardown(self) -> None: ...
        @staticmethod
        def parse_devices(devices: Any) -> Any:
            return devices

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [place]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "machine"

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return {}

    losses: list[torch.Tensor] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
            )

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            (x,) = batch
            loss = torch.nn.functional.mse_loss(self.net(x), x.sum(1, keepdim=True))
            losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            assert self.net[0].weight.device == place
            return thinwire.OnebitAdam(self.parameters(), lr=1e-2, freeze_step=3)

    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x)
    trainer = lightning.Trainer(
        accelerator=Machine(),
        strategy=SingleDeviceStrategy(device=place),
        devices=1,
        callbacks=[Checkpoint(out, save_top_k=-1, every_n_train_steps=SAVED)],
        max_epochs=-1,
        max_steps=LAST,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer.fit(module := Module(), loader, ckpt_path=resume)
    values = [p.detach().cpu().flatten().tolist() for p in module.parameters()]
    return [[loss.item() for loss in losses], values]


def test_it_trains_saves_and_resumes_as_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("lightning")

    def run(where: str, resume: bool = False) -> Any:
        out = tmp_path / where
        saved = [str(f) for f in out.glob(f"*step={SAVED}.ckpt")] if resume else [None]
        return devices.run(1, __file__, "train", str(out), where, *saved)[0]

    expected = run("cpu")
    assert len(expected[0]) == LAST
    assert devices.alike(run("device"), expected)
    # Lightning begins the epoch anew, on both.
    expected = run("cpu", resume=True)
    assert len(expected[0]) == LAST - SAVED
    assert devices.alike(run("device", resume=True), expected)
