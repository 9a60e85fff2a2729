# SPDX-License-Identifier: Apache-2.0
"""on_device.py WHERE SCRIPT ARGUMENTS: runs the script and prints a digest of its model.

WHERE: "cpu"; "found", where torch finds the device of the tests; or "default", where all
tensors are made on it besides.
"""

import hashlib
import os
import runpy
import sys

import devices
import torch

where = sys.argv[1]
device = torch.device("cpu")
if where != "cpu":
    device = devices.device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
if where == "default":
    torch.accelerator.set_device_index(device.index)
    torch.set_default_device(device)
del sys.argv[:2]
model = runpy.run_path(sys.argv[0], run_name="__main__")["model"]
digest = hashlib.sha256()
for parameter in model.parameters():
    assert parameter.device.type == device.type, parameter.device
    digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
print(f"parameters {digest.hexdigest()}")
if devices.IS_FENCE:
    # Ending right after a backward on it, torch itself aborts now and then.
    sys.stdout.flush()
    os._exit(0)
