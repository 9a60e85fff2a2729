#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank's mixed-precision Adam step beside DeepSpeed's and torch's.

fp16 gradients and model, fp32 parameters and moments in one flat array each:
are the gradients finite, how long are they, unscale, clip, AdamW, round for the
model. All variants run in turns, in one process per number of threads; ratios are
medians over rounds of times of one round.

--step mixed: the arithmetic alone, on the same memory as the others.
--step zero2: ZeRO-2 on its shard, from the reduced gradient; nothing travels.
--step offload: ZeRO-2's host part under offload, of gradients that have come to
    the host and parameters that have not left it. DeepSpeed has measured the
    norm on the device by then and sent fp32; Thinwire takes fp16 and measures it
    here.
"""

import argparse
import ctypes
import math
import os
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
    parser.add_argument("--step", choices=list(STEPS), default="mixed")
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


class ZeroSettings(ctypes.Structure):
    """Fields in the order of zero.cpp's ThinwireZeroSettings."""

    _fields_ = (
        [("params", ctypes.c_void_p), ("model", ctypes.c_void_p)]
        + [("size", ctypes.c_size_t)]
        + [
            (name, ctypes.c_float)
            for name in ("learning_rate", "weight_decay", "loss_scale", "max_norm")
        ]
        + [("offload", ctypes.c_int), ("num_threads", ctypes.c_int)]
    )


def nothing():
    pass


class Variant(NamedTuple):
    """A step, what is not timed before it, and what brings the parameters to
    the arrays in the end."""

    run: Callable[[], None]
    before: Callable[[], None] = nothing
    finish: Callable[[], None] = nothing


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

    return {"thinwire": Variant(once)}


def thinwire_zero(arrays, threads, library, offload):
    zero = ctypes.CDLL(str(library))
    zero.thinwire_zero_new.restype = ctypes.c_void_p
    calls = {
        name: getattr(zero, f"thinwire_zero_{name}")
        for name in ("collect", "step", "read")
    }
    for call in calls.values():
        call.restype = ctypes.c_double
    settings = ZeroSettings(
        arrays.params.data_ptr(),
        arrays.model.data_ptr(),
        arrays.params.numel(),
        LR,
        DECAY,
        LOSS_SCALE,
        MAX_NORM,
        offload,
        threads,
    )
    handle = ctypes.c_void_p(zero.thinwire_zero_new(ctypes.byref(settings)))
    if not handle:
        raise RuntimeError("thinwire_zero_new failed")
    weakref.finalize(arrays, zero.thinwire_zero_delete, handle)

    def call(name, *pointers):
        result = calls[name](handle, *map(ctypes.c_void_p, pointers))
        if not 0 <= result < math.inf:
            raise RuntimeError(f"thinwire_zero_{name} returned {result}")

    return {
        "thinwire": Variant(
            lambda: call("step"),
            lambda: call("collect", arrays.grads.data_ptr()),
            lambda: call("read", arrays.params.data_ptr()),
        )
    }


def thinwire_zero2(_torch, arrays, threads, library):
    return thinwire_zero(arrays, threads, library, False)


def thinwire_offload(_torch, arrays, threads, library):
    return thinwire_zero(arrays, threads, library, True)


def adopt(optimizer, arrays, step):
    """An optimizer of arrays.params with the moments of arrays."""
    parameter = optimizer.param_groups[0]["params"][0]
    optimizer.state[parameter] = {
        "step": step,
        "exp_avg": arrays.exp_avg,
        "exp_avg_sq": arrays.exp_avg_sq,
    }
    return parameter


def cpu_adam(torch, arrays):
    """DeepSpeed's, of arrays.params and its moments."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    master = torch.nn.Parameter(arrays.params)
    optimizer = DeepSpeedCPUAdam([master], lr=LR, weight_decay=DECAY)
    adopt(optimizer, arrays, 0)
    return optimizer, master


def lean(torch, arrays, optimizer, master):
    """No pass for the overflow, which the norm shows, and no temporaries."""

    def once():
        master.grad = arrays.fp32_grads.copy_(arrays.grads)
        norm = torch.linalg.vector_norm(master.grad).item()
        if not math.isfinite(norm):
            return
        master.grad.mul_(1.0 / clip_factor(norm))
        optimizer.step()
        arrays.model.copy_(master.data)

    return Variant(once)


def deepspeed(torch, arrays, _threads, _library):
    from deepspeed.runtime.utils import CheckOverflow, get_weight_norm

    optimizer, master = cpu_adam(torch, arrays)

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

    return {
        "deepspeed": Variant(unfused),
        "deepspeed, lean": lean(torch, arrays, optimizer, master),
    }


def deepspeed_zero2(torch, arrays, _threads, _library):
    from deepspeed.runtime.utils import has_inf_or_nan
    from deepspeed.runtime.zero.utils import get_norm_dtype

    optimizer, master = cpu_adam(torch, arrays)

    def once():
        """The operations of DeepSpeedZeroOptimizer.step(), in its order, where
        the gradients of the shard are one flat array already."""
        if bool(has_inf_or_nan(arrays.grads)):
            return
        wide = arrays.grads.to(get_norm_dtype())
        norm = torch.linalg.vector_norm(wide).item()
        del wide
        master.grad = arrays.grads.to(torch.float32)
        master.grad.mul_(1.0 / clip_factor(norm))
        optimizer.step()
        master.grad = None
        arrays.model.copy_(master.data)

    return {
        "deepspeed": Variant(once),
        "deepspeed, lean": lean(torch, arrays, optimizer, master),
    }


def deepspeed_offload(torch, arrays, _threads, _library):
    optimizer, master = cpu_adam(torch, arrays)
    norm = torch.linalg.vector_norm(arrays.grads, dtype=torch.float64).item()

    def arrive():
        master.grad = arrays.fp32_grads.copy_(arrays.grads)

    def once():
        master.grad.mul_(1.0 / clip_factor(norm))
        optimizer.step()
        arrays.model.copy_(master.data)

    return {"deepspeed": Variant(once, arrive)}


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
        "torch, norm of fp32": Variant(norm_of_fp32),
        "torch, norm of fp16": Variant(norm_of_fp16),
        "torch, no norm": Variant(no_norm),
    }


# Thinwire's variant is the first.
STEPS = {
    "mixed": (thinwire, deepspeed, torch_fused),
    "zero2": (thinwire_zero2, deepspeed_zero2),
    "offload": (thinwire_offload, deepspeed_offload),
}


def variants(torch, step, arrays, threads, library):
    """Every variant that there is here, and why others are not."""
    found, missing = {}, {}
    for make in STEPS[step]:
        try:
            found |= make(torch, arrays, threads, library)
        except Exception as error:  # whatever a peer's build or import may throw
            if make is STEPS[step][0]:
                raise
            missing[make.__name__] = f"{type(error).__name__}: {error}"
    return found, missing


def check(torch, step, threads, library):
    """All variants give the same parameters, up to rounding, or this throws."""
    size, want = 100_003, None
    for name in variants(torch, step, Arrays(torch, 64), threads, library)[0]:
        arrays = Arrays(torch, size)
        before = arrays.params.clone()
        variant = variants(torch, step, arrays, threads, library)[0][name]
        for _ in range(3):
            variant.before()
            variant.run()
        variant.finish()
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
    check(torch, args.step, threads, args.library)
    arrays = Arrays(torch, args.elements)
    runs, missing = variants(torch, args.step, arrays, threads, args.library)
    cold = torch.ones(1 << 25)
    for variant in runs.values():
        variant.before()
        variant.run()
    names, busy = list(runs), 0
    seconds = {name: [] for name in names}
    for round_ in range(args.rounds):
        busy += not wait_until_quiet()
        for i in range(len(names)):
            name = names[(i + round_) % len(names)]
            runs[name].before()
            cold.sum()  # so that nobody finds gradients in the cache
            time.sleep(0.05)  # threads of the one before stop spinning
            begin = time.perf_counter()
            runs[name].run()
            seconds[name].append(time.perf_counter() - begin)
    print(
        f"\n{args.step}, {threads} thread(s), {args.elements} elements, "
        f"{args.malloc} malloc, ",
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
