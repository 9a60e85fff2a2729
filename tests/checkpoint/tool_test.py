#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `thinwire checkpoint` as users do.

usage: tool_test.py THINWIRE FORMAT_PROGRAM [TEST...]
"""

import json
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

THINWIRE, FORMAT = sys.argv[1:3]


def write(folder, world=2, step=1000, offset=0.0, *more):
    command = [FORMAT, "tiny", str(folder), str(world), str(step), str(offset), *more]
    subprocess.run(command, check=True)


def floats(path, name):
    """The fp32 tensor of that name in a safetensors file."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:begin])[name]
    first, last = (begin + offset for offset in entry["data_offsets"])
    count = (last - first) // 4
    return list(struct.unpack_from(f"<{count}f", data, first)), entry


class Tool(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def run_tool(self, *words, code=0):
        command = [THINWIRE, "checkpoint", *map(str, words)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 0 if code == 0 else 1)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def json_of(self, *words, code=0):
        text = self.run_tool(*words, "--json", code=code)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def two(self):
        write(self.root / "step-0000001000", 2, 1000)
        write(self.root / "step-0000002000", 4, 2000)
        partial = self.root / "step-0000003000.partial-0123456789abcdef"
        partial.mkdir()
        return self.root / "step-0000001000", self.root / "step-0000002000", partial

    def test_ls_lists_the_newest_first_and_partial_ones_last(self):
        _, _, partial = self.two()
        lines = self.run_tool("ls", self.root).splitlines()
        self.assertEqual(lines[0].split()[:3], ["step", "age", "ranks"])
        self.assertIn("2000", lines[1])
        self.assertIn("onebit_adam", lines[1])
        self.assertIn("1000", lines[2])
        self.assertRegex(lines[3], f"partial +{partial.name}: .*manifest.json")
        objects = self.json_of("ls", self.root)
        self.assertEqual([o["complete"] for o in objects], [True, True, False])
        self.assertEqual([o.get("ranks") for o in objects], [4, 2, None])
        self.assertEqual(objects[0]["parameters"], 15)

    def test_ls_and_verify_agree_on_folders_that_are_not_checkpoints(self):
        one, two, partial = self.two()
        (two / "state-00002-of-00004.safetensors").unlink()
        said = {two.name: "damaged", partial.name: "partial"}
        listed = self.run_tool("ls", self.root)
        verified = self.run_tool("verify", self.root, code=1)
        for name, word in said.items():
            self.assertRegex(listed, f"(?m)^ *{word} +{name}: ")
            self.assertRegex(verified, f"(?m)^{word} +[^ ]*{name}[:/]")
        self.assertRegex(verified, f"(?m)^good +{one}: ")

    def test_show_says_what_the_manifest_says(self):
        one, two, _ = self.two()
        text = self.run_tool("show", one)
        for line in (
            "step        1000",
            "worker_error: float32, by element, mean",
            "step = 1000",
        ):
            self.assertIn(line, text)
        (newest,) = self.json_of("show", self.root)
        self.assertEqual(newest["path"], str(two))
        self.assertEqual(newest["world"], 4)
        self.assertNotIn("xxh3", newest["files"][0])

    def test_verify_names_every_bad_range_and_ends_with_1(self):
        one, two, _ = self.two()
        text = self.run_tool("verify", self.root)
        self.assertEqual(
            [line.split()[0] for line in text.splitlines()], ["good"] * 2 + ["partial"]
        )
        path = two / "state-00002-of-00004.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 4
        path.write_bytes(data)
        self.assertIn(
            f"bytes 0-{len(data) - 1}: ", self.run_tool("verify", two, code=1)
        )
        self.assertIn("good", self.run_tool("verify", one))
        first, second = self.json_of("verify", self.root, code=1)
        self.assertEqual(first["damages"][0]["file"], path.name)
        self.assertTrue(second["good"])
        (one / "config.json").unlink()
        text = self.run_tool("verify", self.root, code=1)
        self.assertIn("2 of 3 checkpoints are damaged", text)
        manifest = one / "manifest.json"
        manifest.write_text(manifest.read_text().replace("1000", "1001", 1))
        self.assertIn("manifest.json", self.run_tool("verify", one, code=1))

    def test_what_training_saves_is_good_and_shown(self):
        subprocess.run([FORMAT, "full", str(self.root), "2", "3"], check=True)
        (a,) = self.root.glob("step-*")
        self.assertIn("good", self.run_tool("verify", a))
        text = self.run_tool("show", a)
        self.assertRegex(text, "weights +2 local steps behind")
        self.assertIn("2 others, 1 aliases", text)
        self.assertIn("extra/seen in state-00001-of-00002.safetensors: int64", text)
        self.assertIn("extra_of_rank/random in state-00002-of-00002", text)

    def test_export_writes_weights_and_states_by_name(self):
        write(self.root / "one", 3, 7)
        out = self.root / "out"
        self.run_tool("export", self.root / "one", "--out", out, "--states")
        self.assertEqual(
            sorted(path.name for path in out.iterdir()),
            ["config.json", "model.safetensors", "optimizer.safetensors"],
        )
        values, entry = floats(out / "model.safetensors", "b")
        self.assertEqual(entry["shape"], [3, 3])
        self.assertEqual(values, [len("weights") + 0.25 * i for i in range(5, 14)])
        values, entry = floats(out / "optimizer.safetensors", "exp_avg_sq/b")
        self.assertEqual(values, [len("exp_avg_sq") + 0.25 * i for i in range(5, 14)])
        _, entry = floats(out / "optimizer.safetensors", "step")
        self.assertEqual((entry["dtype"], entry["shape"]), ("I64", []))
        # Nothing that is there is replaced.
        self.assertIn(
            "File exists",
            self.run_tool("export", self.root / "one", "--out", out, code=1),
        )
        half = self.root / "half"
        (file, _) = self.json_of(
            "export", self.root / "one", "--out", half, "--dtype", "bf16"
        )
        self.assertEqual(file["bytes"], (half / "model.safetensors").stat().st_size)
        _, entry = floats(half / "model.safetensors", "a")
        self.assertEqual((entry["dtype"], entry["shape"]), ("BF16", [5]))

    def test_export_takes_masters_where_weights_are_rounded(self):
        write(self.root / "one", 3, 7, 1 / 1024, "masters")
        exact = [len("weights") + 0.25 * i + 1 / 1024 for i in range(15)]
        for words, want in (([], "BF16"), (["--dtype", "fp32"], "F32")):
            out = self.root / want
            self.run_tool("export", self.root / "one", "--out", out, *words)
            values, entry = floats(out / "model.safetensors", "b")
            self.assertEqual(entry["dtype"], want)
        self.assertEqual(values, exact[5:14])  # which bf16 does not hold

    def test_what_is_not_there_or_wrong_usage(self):
        nowhere = self.root / "nowhere"
        for command in ("ls", "show", "verify"):
            self.assertIn("nowhere", self.run_tool(command, nowhere, code=1))
            self.assertIn(
                "there is no checkpoint", self.run_tool(command, self.root, code=1)
            )
        for words in ([], ["ls"], ["export", "a"], ["prune", "a"]):
            self.run_tool(*words, code=2)
        self.run_tool("export", "a", "--out", "b", "--dtype", "fp8", code=2)

    def test_diff_is_rejected_with_what_to_use_instead(self):
        for words in (["a", "b"], ["a", "b", "--json"], ["--help"]):
            text = self.run_tool("diff", *words, code=2)
            self.assertIn("checkpoint export DIR --out D --states", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *(f"Tool.{name}" for name in sys.argv[3:])])
