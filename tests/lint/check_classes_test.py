#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_classes.py can fail, and what it counts."""

import unittest

import check_classes
import planted_tree


def functions_of(code):
    """Public functions of the one class of `code`."""
    ((_, _, functions),) = check_classes.classes_of(code)
    return functions


def class_with(functions, name="Wide", head="class {} {{\n public:\n"):
    """A class with so many public functions."""
    body = "".join(f"  void f{i}(int x);\n" for i in range(functions))
    return head.format(name) + body + "};\n"


class CheckClasses(unittest.TestCase):
    def run_on(self, code, path="include/thinwire/core/a.h"):
        return planted_tree.run_on("check_classes.py", {path: "//\n" + code})

    def test_refuses_one_function_too_many(self):
        status, output = self.run_on(class_with(21))
        self.assertEqual(status, 1)
        self.assertIn("core/a.h:2: Wide has 21 public functions; 20", output)
        self.assertEqual(self.run_on(class_with(20)), (0, ""))

    def test_refuses_structs_and_private_classes_too(self):
        code = class_with(21, "Outer::Impl", "struct {} final : Base<int> {{\n")
        status, output = self.run_on(code, "src/core/a.cpp")
        self.assertEqual(status, 1)
        self.assertIn("src/core/a.cpp:2: Outer::Impl has 21", output)

    def test_two_classes_may_have_thirty(self):
        for name in ("Engine", "Communicator"):
            self.assertEqual(self.run_on(class_with(30, name)), (0, ""))
            status, output = self.run_on(class_with(31, name))
            self.assertEqual(status, 1)
            self.assertIn(f"{name} has 31 public functions; 30", output)

    def test_counts_overloads_templates_and_bodies(self):
        code = """class A : public B {
         public:
          A(int x);
          explicit A(B b) : b_(b) { f(); }
          ~A();
          A& operator=(const A&) = delete;
          bool operator==(const A&) const = default;
          void f() { if (x) { g(); } }
          void f(int);
          template <class F> auto g(F&& body) -> decltype(body()) { return body(); }
          [[nodiscard]] virtual std::map<int, int> h() const = 0;
          using Function = std::function<void(int)>;
          friend void other(A&);
          struct Nested;
          std::function<void(int)> field{};
          int value = f(3);
         protected:
          void hidden();
         private:
          void also_hidden();
        };"""
        self.assertEqual(functions_of(code), ["f", "f", "g", "h"])

    def test_a_forward_declaration_and_an_enum_are_no_classes(self):
        code = "class A;\nenum class B { kOne };\nstruct C { int x = 0; };\n"
        self.assertEqual(functions_of(code), [])

    def test_a_tree_without_classes_fails(self):
        status, output = self.run_on("int x;\n")
        self.assertEqual(status, 1)
        self.assertIn("no classes", output)


if __name__ == "__main__":
    unittest.main()
