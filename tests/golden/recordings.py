#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs and unpacks the recordings that tests/golden replays (README.md).

usage: recordings.py pack FOLDER    write recordings.tar.xz beside this script
       recordings.py unpack FOLDER  the reverse

The archive leaves out what can be computed again: parameters at the start and
gradients come from a generator whose settings are in meta.json. Packing checks
that every file left out is computed bit for bit, so that nothing is lost.
"""

import array
import io
import json
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().with_name("recordings.tar.xz")
# Kinds of random numbers: parameters, and three parts of a gradient.
INIT, COMMON, OF_THE_STEP, OF_THE_RANK = 1, 2, 3, 4
MASK = (1 << 64) - 1


def mix(x):
    """SplitMix64's finalizer: 64 bits in, 64 well-mixed bits out."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def unit(seed, kind, tensor, step, rank, size):
    """`size` multiples of 2^-23 in [-1, 1)."""
    s = mix(seed)
    for k in (kind, tensor, step, rank):
        s = mix(s ^ k)
    return [((mix(s + i) >> 40) - (1 << 23)) * 2.0**-23 for i in range(size)]


def initial_parameters(meta):
    """init.bin: [P]"""
    values = array.array("f")
    for tensor in meta["tensors"]:
        size = tensor["n"]
        if meta["groups"][tensor["group"]].get("zero_param"):
            values.extend([0.0] * size)
            continue
        units = unit(meta["seed"], INIT, tensor["idx"], 0, 0, size)
        values.extend([meta["pscale"] * u for u in units])
    return values


def rows_with_gradients(meta, tensor):
    """How many elements of a tensor have gradients; later rows are times 0."""
    group = meta["groups"][tensor["group"]]
    rows = group.get("mask", {}).get("rows_from", group.get("zero_rows_from"))
    if rows is None:
        return tensor["n"]
    return rows * (tensor["n"] // tensor["shape"][0])


def gradients(meta):
    """grads.bin: [rank][step][P], ZeRO: [rank][step][backward][P]"""
    seed, tensors = meta["seed"], meta["tensors"]
    backwards = meta.get("gas", 1)
    amplitudes = meta["amp_by_step"] or [1.0] * meta["steps"]
    common_share, step_share, rank_share = meta["mix"]

    def shared(kind, step):
        return [unit(seed, kind, t["idx"], step, 0, t["n"]) for t in tensors]

    common = shared(COMMON, 0)
    of_steps = [shared(OF_THE_STEP, n) for n in range(meta["steps"] * backwards)]
    values = array.array("f")
    for rank in range(meta["world"]):
        for n, of_step in enumerate(of_steps):
            scale = meta["gscale"] * amplitudes[n // backwards]
            for index, tensor in enumerate(tensors):
                size = tensor["n"]
                of_rank = unit(seed, OF_THE_RANK, tensor["idx"], n, rank, size)
                row = [
                    scale * (common_share * a + step_share * b + rank_share * c)
                    for a, b, c in zip(common[index], of_step[index], of_rank)
                ]
                live = rows_with_gradients(meta, tensor)
                row[live:] = [0.0 * g for g in row[live:]]  # Signs stay.
                values.extend(row)
    return values


COMPUTED = {"init.bin": initial_parameters, "grads.bin": gradients}


def little_endian(values):
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def inputs(meta):
    """The files of a case that are not in the archive."""
    if "seed" not in meta:
        return {}
    return {name: little_endian(make(meta)) for name, make in COMPUTED.items()}


def required_folders(root):
    """Those that index.json wants to pass, and the traces of loss scalers."""
    index = json.loads((root / "index.json").read_text())
    names = [name for name, case in index.items() if case["required"]]
    return [root / name for name in names] + [root / "loss_scalers"]


def add(tar, name, data):
    """The same bytes whoever packs, and whenever."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def pack(root):
    # Files of one kind beside one another: xz finds more in common.
    files = [file for folder in required_folders(root) for file in folder.iterdir()]
    files.sort(key=lambda file: (file.suffix, file.name, file))
    computed = set()
    for file in files:
        if file.name == "meta.json":
            for name, data in inputs(json.loads(file.read_text())).items():
                if (file.parent / name).read_bytes() != data:
                    sys.exit(f"{file.parent / name} is not what is computed")
                computed.add(file.parent / name)
    index = {
        folder.relative_to(root).as_posix(): {"required": True}
        for folder in required_folders(root)[:-1]
    }
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as tar:
        add(tar, "index.json", json.dumps(index, indent=1).encode() + b"\n")
        for file in files:
            # native.*: the same run with other sums, which nothing compares.
            if file in computed or file.name.startswith("native."):
                continue
            add(tar, file.relative_to(root).as_posix(), file.read_bytes())
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes, {len(index)} cases")


def unpack(root):
    with tarfile.open(ARCHIVE) as tar:
        for member in tar:
            file = root / member.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(tar.extractfile(member).read())
    for meta in root.rglob("meta.json"):
        for name, data in inputs(json.loads(meta.read_text())).items():
            (meta.parent / name).write_bytes(data)


def main():
    commands = {"pack": pack, "unpack": unpack}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
