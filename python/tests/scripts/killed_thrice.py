# SPDX-License-Identifier: Apache-2.0
"""Runs a script whose last rank is killed three times: at these steps, once each.

killed_thrice.py FOLDER SCRIPT [ARGUMENT ...]
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

AT = (130, 170, 230)
folder, script, *arguments = sys.argv[1:]


def perhaps_die(optimizer, *_):
    step = int(next(iter(optimizer.state.values()), {"step": 0})["step"]) + 1
    died = Path(folder) / f"died-at-{step}"
    last = dist.get_rank() == dist.get_world_size() - 1
    if last and step in AT and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


sys.argv = [script, *arguments]
register_optimizer_step_pre_hook(perhaps_die)
runpy.run_path(script, run_name="__main__")
