#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads of one training state beside torch's and safetensors'.

The model is in fp32 with Adam's two moments, replicated on every rank: 12 bytes per
element. All variants run in turns in the same processes. The figures are medians over
rounds of the slowest rank's seconds. Alone it is one rank; under mpirun

    mpirun -np 2 PYTHON bench/checkpoint/peers.py

torch.distributed.checkpoint (DCP) uses gloo. torch.save and safetensors write on rank 0
and read on every rank. Every file is on the disk (fsync) when a save has returned,
which DCP does by itself. Thinwire verifies each byte that it loads; the others hash
nothing.
"""

import argparse
import ctypes
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/bench/libsaved_rank.so"
BUILD = "cmake --build --preset release --target saved_rank"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=1 << 25)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, default=Path("."), help="folder to write to"
    )
    parser.add_argument("--library", type=Path, default=LIBRARY)
    return parser.parse_args()


def nothing():
    pass


class Variant(NamedTuple):
    """save() may continue in the background; wait() ends when it is done."""

    name: str
    save: Callable[[], None]
    load: Callable[[], None] = None
    wait: Callable[[], None] = nothing
    remove: Callable[[], None] = nothing


def thinwire(args, folder):
    library = ctypes.CDLL(str(args.library))

    def call(name, *values):
        function = getattr(library, name)
        function.restype = ctypes.c_char_p
        problem = function(*values)
        if problem is not None:
            raise RuntimeError(problem.decode())

    sizes = ctypes.c_size_t(args.elements), ctypes.c_size_t(args.tensors)
    call("thinwire_begin", str(folder).encode(), *sizes)

    def do(name):
        return lambda: call(f"thinwire_{name}")

    remove = do("remove")
    variants = [
        Variant("Thinwire", do("save"), do("load"), remove=remove),
        Variant("Thinwire, asynchronous", do("begin_save"), None, do("wait"), remove),
    ]
    return variants, do("end")


def state_of(torch, args):
    """Returns torch's state dicts: the model, and two moments of each tensor."""
    bounds = [args.elements * i // args.tensors for i in range(args.tensors + 1)]
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    torch.manual_seed(1)
    return {
        f"{part}.layer.{i}.weight": torch.randn(size)
        for part in ("model", "exp_avg", "exp_avg_sq")
        for i, size in enumerate(sizes)
    }


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def one_file(name, path, write, load, is_first):
    """Returns a variant that writes one file on rank 0 and reads it on every rank."""

    def save():
        if is_first:
            write()
            sync(path)
            sync(path.parent)

    def remove():
        if is_first:
            path.unlink(missing_ok=True)

    return Variant(name, save, load, remove=remove)


def torch_save(torch, state, folder, is_first):
    path = folder / "torch.pt"

    def load():
        return torch.load(path, weights_only=True)

    return one_file("torch.save", path, lambda: torch.save(state, path), load, is_first)


def safetensors(state, folder, is_first):
    from safetensors.torch import load_file, save_file

    path = folder / "all.safetensors"

    def load():
        # load_file() maps the file; clone() reads it.
        return {name: tensor.clone() for name, tensor in load_file(path).items()}

    return one_file("safetensors", path, lambda: save_file(state, path), load, is_first)


def dcp(torch, state, folder, is_first):
    from torch.distributed import checkpoint

    path = folder / "dcp"
    into = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    under_way = []
    # A process group of its own, because async_save exchanges from a thread.
    options = {"checkpoint_id": path, "process_group": torch.distributed.new_group()}

    def remove():
        if is_first:
            shutil.rmtree(path, ignore_errors=True)

    def begin():
        under_way.append(checkpoint.async_save(state, **options))

    return [
        Variant(
            "torch DCP save",
            lambda: checkpoint.save(state, **options),
            lambda: checkpoint.load(into, **options),
            remove=remove,
        ),
        Variant(
            "torch DCP async_save",
            begin,
            None,
            lambda: under_way.pop().result(),
            remove,
        ),
    ]


class Group:
    """Returns gloo's group of the ranks that mpirun started, or of this process
    alone."""

    def __init__(self, torch):
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        if "OMPI_COMM_WORLD_RANK" in os.environ:
            os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
            os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29561")
            dist.init_process_group("gloo")
        else:
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def slowest(self, body):
        self.dist.barrier()
        begin = time.perf_counter()
        body()
        seconds = self.torch.tensor(
            time.perf_counter() - begin, dtype=self.torch.float64
        )
        self.dist.all_reduce(seconds, self.dist.ReduceOp.MAX)
        return seconds.item()


def measure(group, variants, rounds):
    """Returns, for each variant, seconds until save() returned, until it was done, and
    of load()."""
    times = {variant.name: ([], [], []) for variant in variants}
    for round_ in range(rounds + 1):
        first = round_ % len(variants)
        for variant in variants[first:] + variants[:first]:
            held = group.slowest(variant.save)
            rest = group.slowest(variant.wait)
            loaded = group.slowest(variant.load) if variant.load else 0
            group.dist.barrier()
            variant.remove()
            if round_ > 0:  # the first round creates buffers that are kept
                for kept, value in zip(
                    times[variant.name], (held, held + rest, loaded)
                ):
                    kept.append(value)
    return times


def print_table(times, gigabytes):
    print(
        "| | save blocked training for, s | complete after, s | GB/s | load, s | GB/s |"
    )
    print("|---|---|---|---|---|---|")
    for name, (held, done, loaded) in times.items():
        held, done, loaded = (
            statistics.median(values) for values in (held, done, loaded)
        )
        load = f"{loaded:.3f} | {gigabytes / loaded:.2f}" if loaded else " | "
        print(f"| {name} | {held:.3f} | {done:.3f} | {gigabytes / done:.2f} | {load} |")


def main():
    args = arguments()
    if not args.library.exists():
        sys.exit(f"{args.library} is missing: {BUILD}")
    import torch

    torch.set_num_threads(1)
    group = Group(torch)
    rank = group.dist.get_rank()
    folders = (
        [tempfile.mkdtemp(prefix="thinwire_peers_", dir=args.folder)]
        if rank == 0
        else [None]
    )
    group.dist.broadcast_object_list(folders)
    folder = Path(folders[0])
    state = state_of(torch, args)
    try:
        ours, end = thinwire(args, folder)
        others = [
            torch_save(torch, state, folder, rank == 0),
            *dcp(torch, state, folder, rank == 0),
            safetensors(state, folder, rank == 0),
        ]
        times = measure(group, ours + others, args.rounds)
        end()
    finally:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        print(
            f"{group.dist.get_world_size()} ranks, {args.elements} elements in "
            f"{args.tensors} tensors, medians of {args.rounds} rounds\n"
        )
        print_table(times, 12e-9 * args.elements)
    group.dist.destroy_process_group()


main()
