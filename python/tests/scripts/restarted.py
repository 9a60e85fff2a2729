# SPDX-License-Identifier: Apache-2.0
"""Trains 30 steps under torchrun. In its first attempt rank 1 kills itself at step 17.

restarted.py FOLDER: where checkpoints are
"""

import os
import signal
import sys
import time

import optim_cases as cases
import thinwire
import torch.distributed as dist

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" and os.environ["RANK"] == "0":
    time.sleep(2)  # the other one then finds what the attempt before has left
thinwire.init_distributed("gloo")
rank = dist.get_rank()
net = cases.model()
optimizer = cases.make("OnebitAdam", net.named_parameters())
found = thinwire.resume(sys.argv[1], optimizer)
begin = found.step if found else 0
for step in range(begin + 1, 31):
    cases.train(net, optimizer, [step], rank)
    if step % 10 == 0:
        thinwire.save(sys.argv[1], optimizer)
    if step == 17 and rank == 1 and not found:
        os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    print(f"steps {begin + 1} to 30: {cases.bits(net)}")
