#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the checks of this folder can fail: planted violations of each rule, and
beside them what the rule allows.
"""

import unittest

from planted_tree import PlantedTree

WORDS = " ".join(["word"] * 24)


class CheckSources(PlantedTree):
    def test_every_rule(self):
        core, public = "src/core/a.cpp", "include/thinwire/core/a.h"
        environment = "the environment is read in src/core/env.cpp only"
        prints, ends = "library code never prints", "library code never ends"
        rows = [
            ("src/exchange/a.cpp", '#include "thinwire/optim/adam.h"', "exchange may"),
            (
                "include/thinwire/exchange/a.h",
                '#include "thinwire/optim/adam.h"',
                "exc",
            ),
            (core, '#include "comm/mpi/mpi.h"', "core may not include comm"),
            ("src/kernels/cpu/a.cpp", '#include "thinwire/comm/work.h"', "kernels may"),
            ("src/config/a.cpp", '#include "thinwire/engine/engine.h"', "config may"),
            ("src/config/a.cpp", '#include "thinwire/deepspeed/optimizers.h"', None),
            ("src/deepspeed/a.cpp", '#include "thinwire/config/config.h"', "deepspeed"),
            ("src/optim/a.cpp", '#include "thinwire/torch/module.h"', "optim may not"),
            ("src/optim/a.cpp", '#include "thinwire/misc/a.h"', "'misc' is no module"),
            ("src/optim/a.cpp", '#include "optim/b.h"', None),
            ("src/comm/a.cpp", "#include <mpi.h>", "<mpi.h> belongs in src/comm/mpi/"),
            ("src/comm/mpi/a.cpp", "#include <mpi.h>", None),
            (
                core,
                "#include <hwy/highway.h>",
                "<hwy/highway.h> belongs in src/kernels/",
            ),
            ("src/kernels/cpu/a.cpp", '#include "hwy/foreach_target.h"', None),
            (
                "apps/a.cpp",
                "#include <torch/torch.h>",
                "<torch/torch.h> belongs in inc",
            ),
            ("include/thinwire/torch/a.h", "#include <torch/torch.h>", None),
            (core, "#include <CLI/CLI.hpp>", "<CLI/CLI.hpp> belongs in apps/"),
            (core, "#include <cuda_runtime.h>", "<cuda_runtime.h> belongs in src/ker"),
            (
                public,
                "#include <fmt/format.h>",
                "a public header includes fmt/format.h",
            ),
            (public, '#include "core/b.h"', "a public header includes core/b.h"),
            (
                public,
                "#include <nlohmann/json.hpp>",
                "a public header includes nlohmann/json.hpp",
            ),
            ("src/comm/a.cpp", 'auto* a = std::getenv("A");', environment),
            ("apps/a.cpp", 'auto* a = std::getenv("A");', environment),
            ("examples/train_gpt/a.cpp", 'auto* a = std::getenv("A");', environment),
            ("src/core/env.cpp", 'auto* a = std::getenv("A");', None),
            (core, "void f() { std::abort(); }", ends),
            (core, "void f() { std::cout << 1; }", prints),
            (core, "void f() { fmt::print(1); }", prints),
            (core, "void f() { printf(text); }", prints),
            (core, "void f() { std::fputs(text, stderr); }", prints),
            (core, "void f() { fwrite(text, 1, 1, stderr); }", prints),
            (core, "void f() { perror(text); }", prints),
            (core, "void f() { snprintf(a, 1, b); }", None),
            (core, '// as exit(1)\nauto a = "abort()"; /* std::cout */', None),
            ("src/comm/run.cpp", "void f() { std::cerr << 1; }", None),
            ("src/comm/run.cpp", "void f() { std::abort(); }", ends),
        ]
        licenses = {
            path: (path, "// SPDX-License-Identifier: Apache-2.0", None)
            for path, _, _ in rows
        }
        rows.append(("src/optim/unlicensed.cpp", "int a;", "the first line is not the"))
        self.expect_of_rows("sources", [*licenses.values(), *rows])

    def test_folders_hold_thirty_files(self):
        for k in range(31):
            self.plant(f"docs/a/{k}.md", "")
        self.plant("src/core/a.h", "// SPDX-License-Identifier: Apache-2.0")
        self.expect("sources", "docs/a: 31 files")
        (self.root / "docs/a/30.md").unlink()
        self.expect("sources")


class CheckClasses(PlantedTree):
    def test_counts_public_functions(self):
        counted = """class Counted : public B {
         public:
          Counted(int x);
          explicit Counted(B b) : b_(b) { f(); }
          ~Counted();
          Counted& operator=(const Counted&) = delete;
          bool operator==(const Counted&) const = default;
          void f() { if (x) { g(); } }
          void f(int);
          template <class F> auto g(F&& body) -> decltype(body()) { return body(); }
          [[nodiscard]] virtual std::map<int, int> h() const = 0;
          using Function = std::function<void(int)>;
          friend void other(A&);
          struct Nested;
          std::function<void(int)> field{};
          int value = f(3);
          FUNCTIONS
         protected:
          void hidden();
         private:
          void also_hidden();
        };"""

        def functions(count):
            return "".join(f"  void f{i}(int x);\n" for i in range(count))

        def class_with(count, name):
            return f"class {name} {{\n public:\n{functions(count)}}};"

        header, source = "include/thinwire/core/a.h", "src/core/a.cpp"
        struct = f"struct Outer::Impl final : Base<int> {{\n{functions(21)}}};"
        self.expect_of_rows(
            "classes",
            [
                (
                    header,
                    class_with(21, "Wide"),
                    "Wide has 21 public functions; 20 are",
                ),
                (header, class_with(20, "Narrow"), None),
                (source, struct, "Outer::Impl has 21 public functions; 20"),
                (
                    source,
                    class_with(31, "Engine"),
                    "Engine has 31 public functions; 30",
                ),
                (header, class_with(30, "Communicator"), None),
                (source, counted.replace("FUNCTIONS", functions(16)), None),
                (source, counted.replace("FUNCTIONS", functions(17)), "Counted has 21"),
                (source, "class A;\nenum class B { kOne };", None),
            ],
        )


class CheckImports(PlantedTree):
    def test_refuses_imports_to_the_right_and_circles(self):
        for path, code in {
            "__init__.py": "",
            "comm/a.py": "from ..optim import b",
            "comm/c.py": "from ..optim.b import name",
            "optim/b.py": "from ..comm import d",
            "comm/d.py": "if TYPE_CHECKING:\n    from ..optim import b",
            "e.py": "from . import f",
            "f.py": "def f():\n    from .e import name",
        }.items():
            self.plant(f"python/thinwire/{path}", code)
        right = "thinwire.comm.{} may not import thinwire.optim.b"
        expected = [right.format(module) for module in "acd"]
        self.expect("imports", *expected, "import circle: ")


class CheckProse(PlantedTree):
    def test_documents(self):
        words, parentheses = "26 words", "more than one parenthesis"
        opener, item = "begins like a fragment", "a list item is complete"
        texts = [
            ("# Title\n\nA rank sends (once). It waits (twice).", None),
            (f"Last {WORDS}.", None),
            (f"One last\n{WORDS}.", words),
            (f"Short. One last {WORDS}: it. Short.", "27 words"),
            (f"* one last {WORDS}\n* item", words),
            (f"`a b c` {WORDS}.", None),
            (f"[Last](a/b-c.md#d e f) {WORDS}.", None),
            (f"[One last](a.md) {WORDS}.", words),
            ("A rank (0) sends\n(once).", parentheses),
            ("Often a rank sends what others wait for.", None),
            *((f"{w} a rank sends.", opener) for w in ("Of", "As", "What")),
            *((f"* A. {w} a rank.", opener) for w in ("Where", "Those", "Else")),
            *((f"* {i}", item) for i in ("and …", "… and", "and ...", "a;", "a,")),
            ("It goes\non.", "'goes on': continue"),
            ("all but for one", "'but for': except"),
            ("It pays.", "'pays'"),
            ("| late element |", "'late element': inactive"),
            ("## By host", "'By host': hierarchical"),
            ("A `by host` (see [it](a.md#by-host)).\n\n```\nby host\n```", None),
            ("<!-- x: begin -->\nby host\n<!-- x: end -->", None),
        ]
        page = "docs/guide/a.md"
        self.expect_of_rows("prose", [(page, f"{t}\n", said) for t, said in texts])

    def test_comments_of_cpp(self):
        code = 'char a[] = "\\" // By host.";'
        formula = "///   x = (a + b) / (c + d)"
        lines = [
            (f"// {WORDS}.\n/// Calls by(host, home).", None),
            (f"int what;  // Last {WORDS}.\nchar pay;\n// it", None),
            (f"/// One last\n/// {WORDS}.", "26 words"),
            ("int x;  ///< By host.", "'By host'"),
            (f"{code}  // It is one.\nchar b = '\"';  // A.", None),
            (f"{code}  // By host.", "'By host'"),
            ("char b = '\"';  // By host.", "'By host'"),
            ("int x;  ///< The same, doubled.", "a list item"),
            ("int x;  // And ...", "a list item"),
            ("int x;  ///< X\n/// Y\nint y;  ///< The same.", None),
            (f"int x;  ///< One\n        ///< last\nint y;  ///< {WORDS}.", None),
            (f"int x;  ///< One\n        ///< last\n        ///< {WORDS}.", "26 words"),
            (f"/// Sets x:\n{formula}\n/// (once).", None),
            ("/// x = (a + b)\n/// times (a - b).", None),
            ("/// Sets x (once)\n/// (here).", "more than one parenthesis"),
            ("// Returns what it has.", "'Returns what'"),
            ("// Hosts have equally many ranks.", "'equally many'"),
            ("// All ranks have as many.", "'as many'"),
            ("// Each has memory of its own.", "'of its own'"),
            ("// Each has its own memory, and is told apart by it.", None),
            ("// A rank is told.", "'is told'"),
        ]
        for path in (
            "include/thinwire/core/a.h",
            "src/core/a.h",
            "apps/thinwire/a.cpp",
        ):
            with self.subTest(path):
                rows = [(path, f"{text}\n", said) for text, said in lines]
                self.expect_of_rows("prose", rows)
                (self.root / path).unlink()

    def test_docstrings(self):
        rows = [
            (
                f'"""Calls home(), a.marks()."""\nx = "# {WORDS}, by host"',
                None,
            ),
            ("# SPDX-License: by host\nx = 1  # noqa: by host", None),
            ("x = 1  # A rank.", None),
            ("# By host.", "'By host'"),
            ("x = 1", None),
            (f"# One last\n# {WORDS}.\nx = 1", "26 words"),
            ('"""By host."""\nx = 1', "'By host'"),
            (f'"""One last\n{WORDS}."""\nx = 1', "26 words"),
            ("class A:\n    x = 1", None),
            ('    """Of A."""', "begins like a fragment"),
            ('"""Runs.\n\n    by host\n\nx: one\n  last.', None),
            (f'y, z: {WORDS}.\n"""', "26 words"),
            ('"""Runs.\n', None),
            ("x: a rank;", "a list item"),
            (f'y: one\n  last {WORDS}.\n"""', "27 words"),
        ]
        path = "python/thinwire/comm/a.py"
        self.expect_of_rows("prose", [(path, *row) for row in rows])

    def test_names_of_tests(self):
        rows = [
            ("tests/core/a_test.cpp", "TEST(Buffers, OfNothingAreEmpty) {", None),
            ("tests/core/a_test.cpp", "TEST_F(A, GoesOn) {  // By host.", "'Goes On'"),
            ("tests/core/a_test.cpp", "TEST_P(A, WhatIsWrittenStays) {", "begins"),
            ("python/tests/test_a.py", "def test_all_is_well():", None),
            ("python/tests/test_a.py", "def test_it_is_under_way():", "'under way'"),
        ]
        self.expect_of_rows("prose", rows)


class CheckErrors(PlantedTree):
    def test_messages_are_those_of_the_sources(self):
        self.plant(
            "src/a.cpp",
            """// the owner is asleep
            void f() {
              fail(fmt::format("parameter '{}' was {} after "
                               "the engine was made", name, how));
              require(rank >= 0, "rank", fmt::format("below {}", n), rank);
              reject("{} must be {}, got {}");
              say("duplicate key \\"{}\\"");
            }""",
        )
        self.plant(
            "python/thinwire/a.py",
            '"""The owner is asleep."""\n'
            'def f(name):\n    """the reader is asleep"""\n'
            """    raise InvalidArgument(f"parameter '{name}' lies on {where(name)}: " "move it")""",
        )
        page, no = "docs/errors.md", "no source says"
        messages = [
            ("parameter '…' was … after the engine was made", None),
            ("rank must be below …, got …", None),
            ("NAME must be RANGE, got VALUE", None),
            ('duplicate key "…"', None),
            ("parameter '…' lies on …: move it", None),
            ("parameter '…' was … after its engine was made", no),
            ("rank must be above …, got …", no),
            ("the owner is asleep", no),
            ("The owner is asleep", no),
            ("the reader is asleep", no),
        ]
        head = (page, "| message | meaning |\n|---|---|", None)
        rows = [(page, f"| `{text}` | … |", said) for text, said in messages]
        self.expect_of_rows("errors", [head, *rows])
        self.expect_of_rows("errors", [head, (page, "| `…` | … |", "`…` says nothing")])
        self.expect_of_rows("errors", [(page, "no messages", "there are no messages")])


class CheckDocs(PlantedTree):
    def setUp(self):
        super().setUp()
        for path in ("a.cpp", "c/a.c", "rust/a.rs"):
            license = "// SPDX-License-Identifier: Apache-2.0\n"
            self.plant(f"examples/{path}", f"{license}int a;\nint b;\n")
        self.plant("examples/python/c.py", "c = 1\nd = 2\n")

    def plant_documents(self, readme, lines, cpp, python):
        self.plant("README.md", readme + "\n" * (lines - readme.count("\n")))
        blocks = (("cpp", cpp), ("c", cpp), ("rust", cpp), ("python", python))
        shown = "".join(f"```{name}\n{code}\n```\n" for name, code in blocks)
        guide = "# Guide\n\n## Two `words`\n\n[up](../README.md#title)\n"
        self.plant("docs/guide.md", guide + shown)

    def test_blocks_are_excerpts_and_links_lead_somewhere(self):
        self.plant_documents(
            "# Title\n\n```cpp\nint a;\nint b;\n```\n\n[guide](docs/guide.md#two-words)\n"
            "[x](https://x.org/y)\n```\n[x](y)\n```\n",
            100,
            "int b;",
            "d = 2",
        )
        self.expect("docs")

    def test_every_rule(self):
        self.plant_documents(
            "# Words\n\n[x](docs/x.md) [x](#x)\n", 101, "nt b;", "d = 3"
        )
        status, output = self.check("docs")
        self.assertEqual(status, 1)
        self.assertEqual(output.count("\n-nt b;\n"), 3, output)
        for said in (
            "\n-d = 3\n",
            "README.md: no such file: docs/x.md\n",
            "README.md: no such heading: #x\n",
            "docs/guide.md: no such heading: ../README.md#title\n",
            "README.md has no C++ block\n",
            "README.md has more than 100 lines\n",
        ):
            self.assertIn(said, output)

    def test_a_decision_begins_with_its_date_and_status(self):
        self.plant_documents("# Title\n\n```cpp\nint a;\n```\n", 9, "int b;", "d = 2")
        good = "# 0002: B\n\n* Date: 2026-01-02\n* Status: holds (2026-02-03)\n"
        page = "docs/design/0002-b.md"
        replaced = "replaced by [0002](0002-b.md), except for a."
        self.plant("docs/design/README.md", "# Decisions\n")
        self.plant(page, good)
        self.plant(
            "docs/design/0001-a.md",
            f"# 0001: A\n\n* Date: 2026-01-02\n* Status: {replaced}\n",
        )
        self.expect("docs")
        for bad in (
            good.replace("0002", "0003"),
            good.replace("* Date: 2026-01-02\n", ""),
            good.replace("-02\n", "\n"),
            good.replace(" (2026-02-03)", ""),
            good.replace("holds (2026-02-03)", "replaced by 0001"),
            good.replace("holds (2026-02-03)", "replaced by [0002](0001-a.md)"),
            good.replace("holds", "may hold"),
        ):
            with self.subTest(bad):
                self.plant(page, bad)
                self.expect("docs", f"{page}: does not begin with number, date")

    def test_a_version_has_sixty_lines_of_the_changelog(self):
        self.plant_documents("# Title\n\n```cpp\nint a;\n```\n", 9, "int b;", "d = 2")
        longest = "- A line.\n" * 59
        self.plant("CHANGELOG.md", f"# Log\n\n## 2.0\n{longest}## 1.0\n{longest}")
        self.expect("docs")
        self.plant("CHANGELOG.md", f"# Log\n\n## 2.0\n{longest}\n## 1.0\n{longest}")
        self.expect("docs", "CHANGELOG.md: more than 60 lines of 2.0")

    def test_the_page_of_figures_has_thirty_kilobytes(self):
        self.plant_documents("# Title\n\n```cpp\nint a;\n```\n", 9, "int b;", "d = 2")
        self.plant("bench/README.md", "# F\n\n" + "é" * 14_997 + "\n")
        self.expect("docs")
        self.plant("bench/README.md", "# F\n\n" + "é" * 14_998 + "\n")
        self.expect("docs", "bench/README.md: more than 30000 bytes")


class CheckEmptyTrees(PlantedTree):
    def test_are_refused(self):
        for name, what in (
            ("sources", "sources"),
            ("classes", "classes"),
            ("imports", "modules"),
        ):
            self.expect(name, f"{self.root}: there are no {what} here")


if __name__ == "__main__":
    unittest.main()
