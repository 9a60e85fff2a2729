# SPDX-License-Identifier: Apache-2.0
"""on_device.py SCRIPT ARGUMENTS: runs the script where torch finds the device of the tests."""

import os
import runpy
import sys

import devices

devices.device()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
if devices.IS_FENCE:
    # Ending right after a backward on it, torch itself aborts now and then.
    sys.stdout.flush()
    os._exit(0)
