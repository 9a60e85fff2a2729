# SPDX-License-Identifier: Apache-2.0
"""One thread per rank in all tests: ranks are many, and cores are few."""

import importlib.util
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)
