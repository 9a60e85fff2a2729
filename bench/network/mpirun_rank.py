# SPDX-License-Identifier: Apache-2.0
"""Makes a process of mpirun a rank of torch.distributed, on a host of its own. Import
it before torch."""

import os

os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
# One host each, so that nothing is sent through shared memory.
os.environ["LOCAL_RANK"], os.environ["LOCAL_SIZE"] = "0", "1"
for name in [name for name in os.environ if name.startswith("OMPI_")]:
    del os.environ[name]
