# SPDX-License-Identifier: Apache-2.0
"""libthinwire_c.so exports the functions of its header, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path


def main():
    library, header = sys.argv[1:]
    declared = set(
        re.findall(r"THINWIRE_API [^;(]*?\b(thinwire_\w+)\(", Path(header).read_text())
    )
    table = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", library],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[0].split("@")[0] for line in table.splitlines()}
    for name in sorted(declared - exported):
        print(f"{name} is declared, but not exported")
    for name in sorted(exported - declared):
        print(f"{name} is exported, but not declared")
    if len(declared) < 20:
        print(f"the header declares only {len(declared)} functions")
    return 0 if declared == exported and len(declared) >= 20 else 1


if __name__ == "__main__":
    sys.exit(main())
