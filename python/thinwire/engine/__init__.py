# SPDX-License-Identifier: Apache-2.0
"""Training with DeepSpeed's interface: initialize() makes an Engine, which runs
backward and steps.
"""

from ..report import EngineReport
from ._engine import Engine
from ._initialize import add_config_arguments, initialize

__all__ = ["Engine", "EngineReport", "add_config_arguments", "initialize"]
