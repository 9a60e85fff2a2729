#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank's mixed-precision Adam step beside DeepSpeed's and torch's.

fp16 gradients and model, fp32 parameters and moments in one flat array each:
are the gradients finite, how long are they, unscale, clip, AdamW, round for the
model. All variants work on the same memory, in turns, in one process per number
of threads; ratios are medians over rounds of times of one round.
"""

import argparse
import ctypes
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/bench/libthinwire_peers.so"
BUILD = "cmake --build --preset release --target thinwire_peers"
# Without these, most of the others' time goes into page faults of temporaries
# that malloc gives back after every operation.
TUNED_MALLOC = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=40000000000:"
    "glibc.malloc.top_pad=268435456"
)
LR, DECAY, LOSS_SCALE, MAX_NORM = 1e-5, 0.01, 1024.0, 1.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--malloc", choices=["tuned", "default"], default="tuned")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    return parser.parse_args()


class Step(ctypes.Structure):
    """Fields in the order of mixed_precision.cpp's ThinwireStep."""

    _fields_ = (
        [
            (name, ctypes.c_void_p)
            for name in ("params", "exp_avg", "exp_avg_sq", "grads", "low_precision")
        ]
        + [("size", ctypes.c_size_t), ("step", ctypes.c_int64)]
        + [
            (name, ctypes.c_float)
            for name in ("learning_rate", "weight_decay", "loss_scale", "max_norm")
        ]
        + [("num_threads", ctypes.c_int)]
    )


class Arrays:
    """What a step works on; the same values for the same size."""

    def __init__(self, torch, size):
        torch.manual_seed(1)
        self.params = torch.randn(size) * 0.02
        self.exp_avg = torch.zeros(size)
        self.exp_avg_sq = torch.zeros(size)
        self.grads = (torch.randn(size) * 0.01).half()
        self.model = self.params.half()
        self.fp32_grads = torch.empty(size)


def clip_factor(norm):
    """By what gradients of this norm, loss scale included, are divided."""
    return max(1.0, (norm / LOSS_SCALE + 1e-6) / MAX_NORM) * LOSS_SCALE


def thinwire(_torch, arrays, threads, library):
    run = ctypes.CDLL(str(library)).thinwire_step
    run.argtypes, run.restype = [ctypes.POINTER(Step)], ctypes.c_double
    pointers = (arrays.params, arrays.exp_avg, arrays.exp_avg_sq, arrays.grads)
    step = Step(
        *(tensor.data_ptr() for tensor in (*pointers, arrays.model)),
        arrays.params.numel(),
        0,
        LR,
        DECAY,
        LOSS_SCALE,
        MAX_NORM,
        threads,
    )

    def once():
        step.step += 1
        norm = run(ctypes.byref(step))
        if not 0 <= norm < math.inf:
            raise RuntimeError(f"thinwire_step returned {norm}")

    return {"thinwire": once}


def adopt(optimizer, arrays, step):
    """An optimizer of arrays.params with the moments of arrays."""
    parameter = optimizer.param_groups[0]["params"][0]
    optimizer.state[parameter] = {
        "step": step,
        "exp_avg": arrays.exp_avg,
        "exp_avg_sq": arrays.exp_avg_sq,
    }
    return parameter


def deepspeed(torch, arrays, _threads, _library):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.runtime.utils import CheckOverflow, get_weight_norm

    master = torch.nn.Parameter(arrays.params)
    optimizer = DeepSpeedCPUAdam([master], lr=LR, weight_decay=DECAY)
    adopt(optimizer, arrays, 0)

    def unfused():
        """The operations of FP16_UnfusedOptimizer.step(), in its order."""
        if CheckOverflow._has_inf_or_nan(arrays.grads, 0):
            return
        norm = float(get_weight_norm([arrays.grads]))
        master.grad = arrays.grads.to(torch.float32)
        master.grad.data.mul_(1.0 / clip_factor(norm))
        optimizer.step()
        master.grad = None
        arrays.model.copy_(master.data)

    def lean():
        """No pass for the overflow, which the norm shows, and no temporaries."""
        master.grad = arrays.fp32_grads.copy_(arrays.grads)
        norm = torch.linalg.vector_norm(master.grad).item()
        if not math.isfinite(norm):
            return
        master.grad.mul_(1.0 / clip_factor(norm))
        optimizer.step()
        arrays.model.copy_(master.data)

    return {"deepspeed": unfused, "deepspeed, lean": lean}


def torch_fused(torch, arrays, _threads, _library):
    master = torch.nn.Parameter(arrays.params)
    optimizer = torch.optim.AdamW([master], lr=LR, weight_decay=DECAY, fused=True)
    adopt(optimizer, arrays, torch.tensor(0.0))
    optimizer.grad_scale = torch.tensor(1.0)
    optimizer.found_inf = torch.tensor(0.0)

    def update(divisor):
        # The kernel itself divides the gradients by grad_scale.
        optimizer.grad_scale.fill_(divisor)
        master.grad = arrays.fp32_grads
        optimizer.step()
        arrays.model.copy_(master.data)

    def norm_of_fp32():
        arrays.fp32_grads.copy_(arrays.grads)
        norm = torch.linalg.vector_norm(arrays.fp32_grads).item()
        if math.isfinite(norm):
            update(clip_factor(norm))

    def norm_of_fp16():
        norm = torch.linalg.vector_norm(arrays.grads, dtype=torch.float32).item()
        if math.isfinite(norm):
            arrays.fp32_grads.copy_(arrays.grads)
            update(clip_factor(norm))

    def no_norm():
        arrays.fp32_grads.copy_(arrays.grads)
        update(LOSS_SCALE)

    return {
        "torch, norm of fp32": norm_of_fp32,
        "torch, norm of fp16": norm_of_fp16,
        "torch, no norm": no_norm,
    }


def variants(torch, arrays, threads, library):
    """Every variant that there is here, and why others are not."""
    found, missing = {}, {}
    for make in (thinwire, deepspeed, torch_fused):
        try:
            found |= make(torch, arrays, threads, library)
        except Exception as error:  # whatever a peer's build or import may throw
            if make is thinwire:
                raise
            missing[make.__name__] = f"{type(error).__name__}: {error}"
    return found, missing


def check(torch, threads, library):
    """All variants give the same parameters, up to rounding, or this throws."""
    size, want = 100_003, None
    for name in variants(torch, Arrays(torch, 64), threads, library)[0]:
        arrays = Arrays(torch, size)
        before = arrays.params.clone()
        once = variants(torch, arrays, threads, library)[0][name]
        for _ in range(3):
            once()
        moved = (arrays.params - before).abs().max().item()
        want = arrays.params if want is None else want
        error = (arrays.params - want).abs().max().item()
        if not error < 0.02 * moved:
            raise RuntimeError(f"{name} differs by {error} of {moved}")


def wait_until_quiet():
    """Until the rest of the machine uses less than 8 % of it, for 20 s at most."""

    def idle_and_all():
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        times = [int(field) for field in fields]
        return times[3] + times[4], sum(times)

    for _ in range(100):
        idle, total = idle_and_all()
        time.sleep(0.2)
        idle_now, total_now = idle_and_all()
        if idle_now - idle > 0.92 * (total_now - total):
            return True
    return False


def measure(args, threads):
    import torch

    torch.set_num_threads(threads)
    check(torch, threads, args.library)
    arrays = Arrays(torch, args.elements)
    runs, missing = variants(torch, arrays, threads, args.library)
    for run in runs.values():
        run()
    names, busy = list(runs), 0
    seconds = {name: [] for name in names}
    for round_ in range(args.rounds):
        busy += not wait_until_quiet()
        for i in range(len(names)):
            name = names[(i + round_) % len(names)]
            time.sleep(0.05)  # threads of the one before stop spinning
            begin = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - begin)
    print(
        f"\n{threads} thread(s), {args.elements} elements, {args.malloc} malloc, ",
        end="",
    )
    print(f"{args.rounds} rounds, {busy} of them on a busy machine")
    for name, times in seconds.items():
        ratio = statistics.median(
            other / ours for other, ours in zip(times, seconds["thinwire"])
        )
        spent = statistics.median(times) / args.elements * 1e9
        print(f"{name:22} {spent:7.3f} ns/element  {ratio:5.2f} x thinwire's time")
    for name, reason in missing.items():
        print(f"{name:22} MISSING, not compared: {reason}")


def main():
    args = arguments()
    if not args.library.exists():
        sys.exit(f"{args.library} is missing; build it: {BUILD}")
    if os.environ.get("THINWIRE_PEERS_CHILD"):
        return measure(args, args.threads[0])
    # malloc and every OpenMP runtime read their environment when they start.
    environment = os.environ | {
        "THINWIRE_PEERS_CHILD": "1",
        "THP_MEM_ALLOC_ENABLE": "1",
    }
    # ninja, of this interpreter's virtual environment.
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if args.malloc == "tuned":
        environment["GLIBC_TUNABLES"] = TUNED_MALLOC
    for threads in args.threads:
        command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads)]
        environment["OMP_NUM_THREADS"] = str(threads)
        status = subprocess.run(command, env=environment, check=False).returncode
        if status != 0:
            sys.exit(status)


if __name__ == "__main__":
    main()
