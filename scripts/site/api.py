# SPDX-License-Identifier: Apache-2.0
"""The reference of C++, C and Python as Markdown, from headers and docstrings alone.

Headers are in clang-format's form, so a declaration of a namespace begins in the first
column. Nothing is compiled or imported.
"""

import ast
import re
import textwrap

SKIPPED = re.compile(
    r'namespace|\}  // namespace|extern "C"|\}$|#|//(?!/)|/\*|\*/| \*|(using enum|friend)\b'
)
TYPE = re.compile(
    r"\b(?:class|struct|enum class|enum|union)\s+(?:\[\[.*?\]\]\s*)?(\w+)"
)
FUNCTION = re.compile(r"(operator\W{1,3}|\w+)\s*\(")
OTHER = re.compile(r"(\w+)\s*(?:=|;|\{|$)")
SPECIAL = re.compile(r"([*<\[])")


def prose(text):
    """A comment as Markdown: only its `code` keeps its meaning."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else SPECIAL.sub(r"\\\1", p) for p in parts)


def depth(text):
    return sum(text.count(c) for c in "({") - sum(text.count(c) for c in ")}")


def bare(line):
    """A line without its comment and literals, for brackets."""
    return re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//.*', "", line)


def declarations(text):
    """(comment, declaration) of a header, in its order."""
    comment, lines, open_brackets = [], [], 0
    text = re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.MULTILINE)
    inner = False
    for line in text.split("\n"):
        if not lines:
            if line.startswith("namespace detail"):
                inner = True
            elif line.startswith("}  // namespace detail"):
                inner = False
            elif line.startswith("///"):
                comment.append(line[3:].removeprefix(" "))
                continue
            if inner or not line.strip() or SKIPPED.match(line):
                comment = []
                continue
        lines.append(line)
        open_brackets += depth(bare(line))
        if open_brackets == 0 and re.search(r"[;}]\s*$", bare(line)):
            yield "\n".join(comment), "\n".join(lines)
            comment, lines = [], []


def is_type(declaration):
    head = re.sub(r"template <.*?>\n", "", declaration, flags=re.DOTALL)
    return re.match(r"(typedef )?(class|struct|enum|union)\b", head) is not None


def shown(declaration):
    """A declaration as users see it: without private members and bodies."""
    if not is_type(declaration):
        signature = re.split(r"\s\{\n", declaration, maxsplit=1)
        return (
            signature[0] + ";"
            if len(signature) > 1 and "(" in signature[0]
            else declaration
        )
    parts = re.split(
        r"^( (?:public|private|protected):)\n", declaration, flags=re.MULTILINE
    )
    kept = parts[0]
    for label, body in zip(parts[1::2], parts[2::2], strict=True):
        kept += f"{label}\n{body}" if label.strip() != "private:" else ""
    kept = kept.rstrip()
    return kept if kept.endswith(";") else kept + "\n};"


def name_of(declaration):
    if is_type(declaration):
        return TYPE.search(declaration)[1]
    head = re.sub(
        r"THINWIRE_API|template <.*?>\n|\[\[.*?\]\]", "", declaration, flags=re.DOTALL
    )
    if head.startswith("using "):
        return head.split()[1]
    if head.startswith("typedef"):
        return re.search(r"\(\*(\w+)\)|(\w+);$", head).group(1) or head.split()[
            -1
        ].rstrip(";")
    return (FUNCTION.search(head) or OTHER.search(head))[1].strip()


def header(text, language, level):
    """A header's declarations, with their comments as text."""
    sections = []
    for comment, declaration in declarations(text):
        name, code = name_of(declaration), shown(declaration)
        if sections and (not comment or sections[-1][0] == name):
            sections[-1][1].append((comment, code))
        else:
            sections.append((name, [(comment, code)]))
    for name, items in sections:
        yield f"{'#' * level} {name}\n"
        for comment, code in items:
            yield from described(comment, "text")  # also formulas
            yield f"```{language}\n{code}\n```\n"


def described(text, language):
    """A comment or docstring as Markdown; paragraphs that are indented are code."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("  "):
            yield f"```{language}\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph:
            yield f"{prose(paragraph)}\n"


def docstring(node):
    return described(ast.get_docstring(node) or "", "python")


def signature(node, prefix=""):
    """The head of a function or class, without its body."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    arguments = ast.unparse(node.args)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    one = f"{prefix}{node.name}({arguments}){returned}"
    if len(one) < 90:
        return one
    parts = textwrap.indent(re.sub(r", (?=\*|\w+[:=,]|\w+$)", ",\n", arguments), "    ")
    return f"{prefix}{node.name}(\n{parts}\n){returned}"


class Package:
    """The modules of a package, by their dotted names."""

    def __init__(self, folder):
        self.trees = {}
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.trees[name] = ast.parse(file.read_text())
        self.packages = {
            ".".join(file.parent.relative_to(folder.parent).parts)
            for file in folder.rglob("__init__.py")
        }

    def find(self, module, name):
        """(module, definition) of a name, which imports may bring; None if it is native."""
        for node in ast.walk(self.trees[module]):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                return module, node
        for node in ast.walk(self.trees[module]):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    base = module.split(".")
                    up = node.level - (module in self.packages)
                    base = base[: len(base) - up]
                    origin = ".".join(
                        base + (node.module.split(".") if node.module else [])
                    )
                    if (
                        origin in self.trees
                        and f"{origin}.{alias.name}" not in self.trees
                    ):
                        return self.find(origin, alias.name)
        return None

    def methods(self, module, node, seen):
        """The documented methods of a class and of its bases in this package."""
        for item in node.body:
            if not isinstance(item, ast.FunctionDef) or not ast.get_docstring(item):
                continue
            if item.name not in seen and not item.name.startswith("_"):
                seen.add(item.name)
                yield item
        for base in node.bases:
            found = isinstance(base, ast.Name) and self.find(module, base.id)
            if found and isinstance(found[1], ast.ClassDef):
                yield from self.methods(*found, seen)

    def entry(self, name, module, node):
        yield f"## {name}\n"
        is_class = isinstance(node, ast.ClassDef)
        yield f"```python\n{signature(node)}\n```\n"
        yield from docstring(node)
        if not is_class:
            return
        for item in ast.walk(node):  # It may be there for type checkers only.
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                yield f"```python\n{signature(item, name + '.')}\n```\n"
                yield from docstring(item)
        for item in self.methods(module, node, set()):
            yield f"### {name}.{item.name}\n"
            marks = [f"@{ast.unparse(d)}\n" for d in item.decorator_list]
            yield f"```python\n{''.join(marks)}{signature(item)}\n```\n"
            yield from docstring(item)

    def public(self, module):
        """The names that a module promises: its __all__, otherwise its own."""
        tree = self.trees[module]
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                return ast.literal_eval(node.value)
        kinds = (ast.ClassDef, ast.FunctionDef)
        own = [n.name for n in tree.body if isinstance(n, kinds)]
        return [name for name in own if not name.startswith("_")]

    def is_native(self, name):
        """Whether a module takes it from the compiled one."""
        return any(
            isinstance(node, ast.Assign)
            and ast.unparse(node).startswith(f"{name} = _core.")
            for tree in self.trees.values()
            for node in tree.body
        )

    def page(self, module):
        yield f"# {module}\n"
        yield from docstring(self.trees[module])
        for name in self.public(module):
            found = self.find(module, name)
            if found:
                yield from self.entry(name, *found)
            elif self.is_native(name):
                yield f"## {name}\n"
                yield f"A class of the compiled module, as in C++. `help({module}.{name})` "
                yield "lists its attributes.\n"
        for node in self.trees.get(f"{module}._options", ast.parse("")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Keywords"):
                yield f"## {node.name}\n"
                yield f"```python\n{ast.unparse(node)}\n```\n"
