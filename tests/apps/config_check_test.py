#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `thinwire config check` as users do.

usage: config_check_test.py THINWIRE [TEST...]
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

THINWIRE = sys.argv[1]
GOOD = '{"optimizer": {"type": "OneBitAdam"}, "dump_state": true}'
BAD = '{"steps_per_print": 10, "train_batchsize": 8, "gradient_clipping": 1.0}'


def run(*words):
    return subprocess.run(
        [THINWIRE, *words], check=False, capture_output=True, text=True, timeout=60
    )


class ConfigCheck(unittest.TestCase):
    def check(self, text, *words, code=0):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(text)
            done = run("config", "check", path, *words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 0 if code == 0 else 1)
        return done

    def test_a_line_per_key(self):
        lines = self.check(GOOD, "--ranks", "2").stdout.splitlines()
        self.assertEqual(lines[0], 'supported  optimizer.type = "OneBitAdam"')
        self.assertRegex(lines[1], "^ignored    dump_state = true: .")
        self.assertRegex(lines[2], "^absent     gradient_clipping: .")
        self.assertEqual(len(lines), 3)

    def test_a_rejected_key_has_its_sentence_and_ends_it_with_1(self):
        done = self.check(BAD, code=1)
        sentence = "unknown key 'train_batchsize'; did you mean 'train_batch_size'?"
        self.assertIn(f"\nrejected   {sentence}\n", done.stdout)
        self.assertIn("supported  gradient_clipping = 1.0\n", done.stdout)
        self.assertRegex(done.stderr, "config.json: 1 rejected\n$")

    def test_what_was_not_checked_is_said(self):
        said = self.check(GOOD).stdout.splitlines()
        self.assertRegex(
            said[3], "^not checked: whether batch sizes and thinwire.ranks_per_host"
        )
        self.assertEqual(len(said), 4)
        said = self.check(BAD, "--ranks", "2", code=1).stdout.splitlines()
        self.assertRegex(said[-1], "^not checked: combinations of keys, and values")
        line = self.check(GOOD, "--json").stdout.splitlines()[-1]
        self.assertEqual(json.loads(line)["status"], "not checked")
        self.assertIsNone(json.loads(line)["key"])

    def test_what_no_number_of_ranks_can_run_is_rejected(self):
        zero = {"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}
        bad = json.dumps({**json.loads(GOOD), **zero})
        self.assertIn("stage) must be 0", self.check(bad, code=1).stdout)
        sizes = '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3}'
        self.assertIn("a multiple of 3 samples", self.check(sizes, code=1).stdout)

    def test_objects_for_programs(self):
        lines = self.check(BAD, "--json", code=1).stdout.splitlines()
        first, second, *_ = map(json.loads, lines)
        said = {"key": "steps_per_print", "status": "supported", "value": 10}
        self.assertEqual(first, {**said, "note": ""})
        self.assertEqual(second["status"], "rejected")
        self.assertIn("did you mean", second["note"])

    def test_what_cannot_be_read_ends_it_with_1_and_wrong_usage_with_2(self):
        self.assertIn("not JSON", self.check("{", code=1).stderr)
        self.assertRegex(
            self.check("", code=1).stderr,
            "config.json: a configuration must be a JSON object, got an empty file\n$",
        )
        self.check(GOOD, "--ranks", "2")
        self.check(GOOD, "--ranks", "0", code=2)

    def test_an_unknown_flag_is_named_even_if_an_argument_is_missing(self):
        for command in (["plan"], ["config", "check"]):
            done = run(*command, "--bogus", "3")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, "not expected: --bogus.* .see --help.\n$")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
