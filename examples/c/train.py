# SPDX-License-Identifier: Apache-2.0
"""The C interface, used from a language that loads shared libraries. Ranks are threads.

python3 train.py [LIBRARY]        default: libthinwire_c.so.0, as the linker finds it
"""

import ctypes
import json
import random
import sys
import threading
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)

RANKS, SIZE = 2, 1000
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "OneBitAdam", "params": {"lr": 0.02, "freeze_step": 40}},
}


class Parameter(Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_size_t)), ("dims", c_size_t)]


class Report(Structure):
    _fields_ = [
        *(("struct_size", c_size_t), ("at_boundary", c_int), ("applied", c_int)),
        *(("phase", c_char_p), ("steps", c_int64), ("learning_rate", c_double)),
        *(("grad_norm", c_double), ("loss_scale", c_double)),
        *(("bytes_sent", c_uint64), ("seconds", c_double)),
        ("waited_seconds", c_double),
    ]


class Library:
    """Functions of the library, by their names without thinwire_. They raise on
    errors."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        self._library.thinwire_last_error.restype = c_char_p
        for name in ("comm_free", "engine_free"):
            self._library[f"thinwire_{name}"].restype = None

    def __getattr__(self, name):
        function = self._library[f"thinwire_{name}"]

        def call(*arguments):
            if function(*arguments):
                raise RuntimeError(self._library.thinwire_last_error().decode())

        return call


def train(thinwire, comm, rank):
    params, grads = (c_float * SIZE)(), (c_float * SIZE)()
    centre = Parameter(b"centre", (c_size_t * 1)(SIZE), 1)
    engine, report = c_void_p(), Report(struct_size=ctypes.sizeof(Report))
    config = json.dumps(CONFIG).encode()
    thinwire.engine_new(comm, config, byref(centre), 1, params, grads, byref(engine))
    noise = random.Random(rank)
    for step in range(1, 201):
        thinwire.engine_begin_backward(engine)
        for i in range(SIZE):
            grads[i] += params[i] - (-1 if i % 2 else 1) + noise.uniform(-0.5, 0.5)
        thinwire.engine_end_backward(engine)
        thinwire.engine_step(engine, byref(report))
        if rank == 0 and step % 50 == 0:
            phase = report.phase.decode()
            print(f"step {step}: {phase}, first number {params[0]:.4f}, ", end="")
            print(f"{report.bytes_sent} bytes sent")
    thinwire.engine_free(engine)
    thinwire.comm_free(comm)


def main():
    thinwire = Library(sys.argv[1] if len(sys.argv) > 1 else "libthinwire_c.so.0")
    comms = (c_void_p * RANKS)()
    thinwire.comm_local(RANKS, comms)
    ranks = [
        threading.Thread(target=train, args=(thinwire, c_void_p(comms[r]), r))
        for r in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()
