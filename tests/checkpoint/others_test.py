#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our reader and writer of safetensors with the Python package's, and
runs examples/read_checkpoint.py.

usage: others_test.py FORMAT_PROGRAM [TEST...]

It needs the packages numpy and safetensors, which scripts/bootstrap installs.
"""

import importlib.util
import json
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy
import safetensors
import safetensors.numpy

PROGRAM = sys.argv[1]
SOURCE = Path(__file__).resolve().parents[2]


def run(*arguments):
    return subprocess.run(
        [PROGRAM, *arguments], check=True, capture_output=True, text=True
    ).stdout


def ours(paths):
    """Per path: the tensors, or the reason it is refused."""
    lines = run("read", *map(str, paths)).splitlines()
    assert len(lines) == len(paths)
    return [json.loads(line) for line in lines]


def theirs(data):
    """Tensors by name as (dtype, shape, bytes), or None where it is refused."""
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {
        name: (e["dtype"], list(e["shape"]), bytes(e["data"]).hex())
        for name, e in entries
    }


def as_theirs(answer):
    tensors = answer["tensors"]
    return {name: (t["dtype"], t["shape"], t["bytes"]) for name, t in tensors.items()}


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Others(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def compare(self, files):
        """What ours accepts theirs does, with equal tensors; so what theirs refuses ours does."""
        paths = []
        for i, data in enumerate(files):
            paths.append(self.folder / f"{i}.safetensors")
            paths[-1].write_bytes(data)
        accepted = 0
        for data, answer in zip(files, ours(paths)):
            if "tensors" in answer:
                accepted += 1
                self.assertEqual(as_theirs(answer), theirs(data), data[:300])
        return accepted

    def test_every_file_written_is_read_by_the_reference(self):
        run("files", str(self.folder))
        paths = sorted(self.folder.iterdir())
        self.assertEqual(len(paths), 181)
        for path, answer in zip(paths, ours(paths)):
            self.assertEqual(as_theirs(answer), theirs(path.read_bytes()))
            with safetensors.safe_open(path, "np") as file:
                self.assertEqual(file.metadata(), {"format": "pt"})

    def test_what_we_accept_the_reference_accepts_with_equal_tensors(self):
        def entry(begin, end, **more):
            return {
                "dtype": "U8",
                "shape": [end - begin],
                "data_offsets": [begin, end],
                **more,
            }

        data = bytes(range(8))
        headers = [
            ({"a": entry(0, 8)}, True),
            ({"a": entry(4, 8), "b": entry(0, 4)}, True),
            ({"a": entry(0, 8, extra=1)}, True),
            ({"__metadata__": {"k": "v"}, "a": entry(0, 8)}, True),
            ({"__metadata__": {"k": 1}, "a": entry(0, 8)}, False),
            ({"a": entry(0, 4), "b": entry(5, 8)}, False),
            ({"a": entry(0, 5), "b": entry(4, 8)}, False),
            ({"a": entry(0, 7)}, False),
            ({"a": entry(0, 9)}, False),
            ({"a": entry(0, 8), "b": entry(8, 8)}, True),
            ({"a": {**entry(0, 8), "shape": [2, 2, 2]}}, True),
            ({"a": {**entry(0, 8), "shape": [3]}}, False),
            ({"a": {**entry(0, 8), "shape": [2**63, 2]}}, False),
            ({"a": {**entry(0, 8), "dtype": "F32", "shape": [2]}}, True),
            ({"a": {**entry(0, 8), "dtype": "X"}}, False),
            (b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   ', True),
            (b'{"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}}', False),
        ]
        files = [file_of(header, data) for header, _ in headers]
        self.assertEqual(self.compare(files), sum(good for _, good in headers))
        for (header, good), file in zip(headers, files):
            self.assertEqual(theirs(file) is not None, good, header)

    def test_mutations_are_not_accepted_where_the_reference_refuses(self):
        source = safetensors.numpy.save(
            {
                "a": numpy.arange(6, dtype="f4").reshape(2, 3),
                "b": numpy.arange(5, dtype="u1"),
                "c": numpy.zeros((0, 4), "i8"),
            },
            {"format": "pt"},
        )
        header_end = 8 + int.from_bytes(source[:8], "little")
        generator = random.Random(1)
        pieces = [
            b"0",
            b"9",
            b"-1",
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b'"',
            b"1e2",
            b"null",
            b"F16",
        ]
        files = []
        for _ in range(2000):
            data = bytearray(source)
            for _ in range(generator.randint(1, 2)):
                at = generator.randrange(header_end)
                if generator.random() < 0.5 or at < 8:
                    data[at] ^= 1 << generator.randrange(8)
                else:
                    data[at : at + 1] = generator.choice(pieces)
            files.append(bytes(data))
        # Changes of a name, of the metadata and the like are other files.
        self.assertGreater(self.compare([source, *files]), 10)

    def test_files_and_folders_of_the_reference_load(self):
        tensors = {
            f"layer.{i}.w": numpy.random.default_rng(i).random((i, 5), "f4")
            for i in range(4)
        }
        single = self.folder / "single"
        single.mkdir()
        safetensors.numpy.save_file(
            tensors, single / "model.safetensors", {"format": "pt"}
        )
        sharded = self.folder / "sharded"
        store = self.folder / "store"  # links, as in Hugging Face's cache
        sharded.mkdir()
        store.mkdir()
        weight_map = {}
        for number, (name, values) in enumerate(tensors.items()):
            file = f"model-{number + 1:05}-of-00004.safetensors"
            safetensors.numpy.save_file({name: values}, store / f"{number}")
            (sharded / file).symlink_to(store / f"{number}")
            weight_map[name] = file
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
        want = {
            n: ("F32", list(v.shape), v.tobytes().hex()) for n, v in tensors.items()
        }
        for answer in ours([single, sharded, single / "model.safetensors"]):
            self.assertEqual(as_theirs(answer), want)
        weight_map["layer.0.w"] = "../store/0"
        (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
        self.assertIn("file name", ours([sharded])[0]["refused"])
        self.assertIn("no weights found", ours([store])[0]["refused"])

    def test_every_file_of_a_checkpoint_is_read_by_the_reference(self):
        run("tiny", str(self.folder), "3", "7", "0.5")
        files = sorted(self.folder.glob("*.safetensors"))
        self.assertEqual(len(files), 4)
        for path in files:
            self.assertIsNotNone(theirs(path.read_bytes()), path)
        answer = as_theirs(ours([self.folder])[0])
        self.assertEqual(answer.pop("tied"), answer["a"])
        self.assertEqual(
            answer, theirs((self.folder / "model.safetensors").read_bytes())
        )

    def test_the_example_rebuilds_an_array_of_a_parameter(self):
        path = SOURCE / "examples" / "read_checkpoint.py"
        spec = importlib.util.spec_from_file_location("read_checkpoint", path)
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        for world in (1, 2, 4):
            folder = self.folder / str(world)
            run("tiny", str(folder), str(world), "7", "0.5")
            for array, rank in (
                ("exp_avg", 0),
                ("exp_avg_sq", 0),
                ("worker_error", world - 1),
            ):
                values = 0.5 + len(array) + 0.25 * numpy.arange(15) + 100 * rank
                want = {
                    "a": values[:5],
                    "b": values[5:14].reshape(3, 3),
                    "one": values[14],
                }
                want["empty"] = values[:0]
                for name, expected in want.items():
                    got = example.read_array(folder, array, name, rank)
                    numpy.testing.assert_array_equal(got, expected)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *(f"Others.{name}" for name in sys.argv[2:])])
