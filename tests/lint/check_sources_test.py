#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_sources.py can fail: one planted violation per rule."""

import unittest

import planted_tree

LICENSE = "// SPDX-License-Identifier: Apache-2.0\n"


def run_on(files):
    """Exit code and output of the check on a tree of these files."""
    return planted_tree.run_on("check_sources.py", files)


class CheckSources(unittest.TestCase):
    def refuses(self, path, code, because):
        status, output = run_on({path: LICENSE + code})
        self.assertEqual(status, 1, output)
        self.assertIn(f"{path}:2: ", output)
        self.assertIn(because, output)

    def accepts(self, path, code):
        status, output = run_on({path: LICENSE + code})
        self.assertEqual((status, output), (0, ""))

    def test_refuses_an_include_to_the_left(self):
        code = '#include "thinwire/optim/adam.h"\n'
        because = "exchange may not include optim"
        self.refuses("src/exchange/a.cpp", code, because)
        self.refuses("include/thinwire/exchange/a.h", code, because)

    def test_refuses_a_private_include_to_the_left(self):
        code = '#include "comm/mpi/mpi.h"\n'
        self.refuses("src/core/a.cpp", code, "core may not include comm")

    def test_refuses_siblings(self):
        code = '#include "thinwire/comm/work.h"\n'
        because = "kernels may not include comm"
        self.refuses("src/kernels/cpu/a.cpp", code, because)

    def test_config_stands_between_deepspeed_and_engine(self):
        code = '#include "thinwire/engine/engine.h"\n'
        self.refuses("src/config/a.cpp", code, "config may not include engine")
        code = '#include "thinwire/deepspeed/optimizers.h"\n'
        self.accepts("src/config/a.cpp", code)
        code = '#include "thinwire/config/config.h"\n'
        self.refuses("src/deepspeed/a.cpp", code, "deepspeed may not include config")
        self.accepts("src/engine/a.cpp", code)

    def test_refuses_the_torch_front_in_the_core(self):
        code = '#include "thinwire/torch/module.h"\n'
        self.refuses("src/optim/a.cpp", code, "optim may not include torch")

    def test_refuses_an_unknown_module(self):
        code = '#include "thinwire/misc/a.h"\n'
        self.refuses("src/optim/a.cpp", code, "'misc' is no module")

    def test_refuses_vendor_headers_elsewhere(self):
        self.refuses("src/comm/a.cpp", "#include <mpi.h>\n", "src/comm/mpi/")
        self.refuses(
            "src/optim/a.cpp", "#include <hwy/highway.h>\n", "src/kernels/cpu/"
        )
        self.refuses("apps/thinwire/a.cpp", "#include <torch/torch.h>\n", "examples/")
        self.refuses("src/core/a.cpp", "#include <CLI/CLI.hpp>\n", "apps/")
        self.refuses("src/core/a.cpp", "#include <cuda_runtime.h>\n", "cuda/")

    def test_refuses_other_libraries_in_public_headers(self):
        code = "#include <fmt/format.h>\n"
        self.refuses("include/thinwire/core/a.h", code, "public header")

    def test_refuses_private_headers_in_public_ones(self):
        code = '#include "core/a.h"\n'
        self.refuses("include/thinwire/core/b.h", code, "public header")

    def test_refuses_json_in_headers(self):
        code = "#include <nlohmann/json.hpp>\n"
        self.refuses("src/engine/a.h", code, ".cpp files")

    def test_refuses_reading_the_environment(self):
        code = 'auto* a = std::getenv("A");\n'
        self.refuses("src/comm/a.cpp", code, "environment")
        self.refuses("apps/thinwire/a.cpp", code, "environment")
        self.refuses("examples/train_gpt/a.cpp", code, "environment")

    def test_refuses_printing_and_exiting_in_the_library(self):
        self.refuses("src/comm/a.cpp", "void f() { std::abort(); }\n", "ends")
        for code in (
            "std::cout << 1",
            "fmt::print(1)",
            "printf(text)",
            "std::fputs(text, stderr)",
            "fwrite(text, 1, 1, stderr)",
            "perror(text)",
        ):
            self.refuses("src/comm/a.cpp", f"void f() {{ {code}; }}\n", "prints")
        self.accepts("src/comm/a.cpp", "void f() { snprintf(a, 1, b); }\n")

    def test_refuses_a_file_without_license(self):
        status, output = run_on({"src/core/a.cpp": "int a;\n"})
        self.assertEqual(status, 1)
        self.assertIn("SPDX", output)

    def test_refuses_a_crowded_folder(self):
        files = {f"src/core/a{k}.cpp": LICENSE for k in range(31)}
        status, output = run_on(files)
        self.assertEqual(status, 1, output)
        self.assertIn("src/core: 31 files", output)
        files.pop("src/core/a30.cpp")
        self.assertEqual(run_on(files), (0, ""))

    def test_refuses_an_empty_tree(self):
        self.assertEqual(run_on({})[0], 1)

    def test_accepts_includes_to_the_right(self):
        self.accepts(
            "src/optim/a.cpp",
            "#include <fmt/format.h>\n"
            '#include "optim/b.h"\n'
            '#include "kernels/cpu_target.h"\n'
            '#include "thinwire/comm/communicator.h"\n'
            '#include "thinwire/core/view.h"\n',
        )

    def test_accepts_vendors_at_home(self):
        self.accepts("src/comm/mpi/a.cpp", "#include <mpi.h>\n")
        self.accepts("src/kernels/cpu/a.cpp", '#include "hwy/foreach_target.h"\n')
        self.accepts("include/thinwire/torch/a.h", "#include <torch/torch.h>\n")
        self.accepts("src/core/env.cpp", 'auto* a = std::getenv("A");\n')

    def test_accepts_printing_where_programs_begin(self):
        self.accepts("src/comm/run.cpp", "void f() { std::cerr << 1; }\n")
        self.refuses("src/comm/run.cpp", "void f() { std::abort(); }\n", "ends")

    def test_accepts_forbidden_words_in_comments_and_strings(self):
        self.accepts(
            "src/core/a.cpp",
            '// as exit(1) would\nauto a = "abort()"; /* std::cout */\n',
        )


if __name__ == "__main__":
    unittest.main()
