# SPDX-License-Identifier: Apache-2.0
"""slow_steps.py SCRIPT ...: SCRIPT, whose steps of OnebitAdam take 20 ms longer, so that a
test can act in the middle of its run.
"""

import runpy
import sys
import time
from typing import Any

import thinwire

fast = thinwire.OnebitAdam.step


def step(self: thinwire.OnebitAdam, *given: Any, **keywords: Any) -> Any:
    time.sleep(0.02)
    return fast(self, *given, **keywords)


setattr(thinwire.OnebitAdam, "step", step)  # noqa: B010
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
