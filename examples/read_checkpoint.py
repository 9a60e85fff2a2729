#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads an array of one parameter from a checkpoint, with numpy and json only.

usage: read_checkpoint.py CHECKPOINT ARRAY PARAMETER [RANK]

CHECKPOINT is a directory with a manifest.json. ARRAY is "weights" or one of the
manifest's arrays by element, such as exp_avg. RANK, from 0, chooses a
rank for arrays that differ between ranks, such as worker_error. The code of this file documents the
format.
"""

import json
import sys
from pathlib import Path

import numpy

DTYPES = {
    "F32": "<f4",
    "F64": "<f8",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "u1",
}


def read_tensors(path):
    """Returns all tensors of a safetensors file by name."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__" and entry["dtype"] in DTYPES:
            first, last = (begin + offset for offset in entry["data_offsets"])
            values = numpy.frombuffer(data[first:last], DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":  # the upper half of a float
                values = (values.astype("<u4") << 16).view("<f4")
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def read_array(checkpoint, array, parameter, rank=0):
    """Returns the parameter's values, in its shape; elements that are in no file are
    NaN."""
    checkpoint = Path(checkpoint)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    names = [entry["name"] for entry in manifest["parameters"]]
    if parameter not in names or not 0 <= rank < manifest["world"]:
        sys.exit(f"no parameter {parameter}, or no rank {rank}")
    if array == "weights":
        files = (checkpoint / name for name in manifest["weights"]["files"])
        return next(t[parameter] for t in map(read_tensors, files) if parameter in t)
    number = names.index(parameter)
    shape = manifest["parameters"][number]["shape"]
    kind = next((a for a in manifest["arrays"] if a["name"] == array), {})
    if kind.get("axis") != "element":
        sys.exit(f"{array} is not an array by element")
    values = numpy.full(int(numpy.prod(shape)), numpy.nan, "<f8")
    for file in manifest["files"]:
        index = dict(file["tensors"]).get(array)
        is_other_rank = not file["name"].startswith(f"state-{rank + 1:05}-of-")
        if index is None or (kind["sharing"] in ("own", "mean") and is_other_rank):
            continue
        tensors = read_tensors(checkpoint / file["name"])
        at = 0
        for row, first, count in tensors[index]:  # parameter, first element, count
            if row == number:
                values[first : first + count] = tensors[array][at : at + count]
            at += count
    return values.reshape(shape)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    print(read_array(*sys.argv[1:4], *map(int, sys.argv[4:])))
