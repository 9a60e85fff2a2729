# SPDX-License-Identifier: Apache-2.0
"""libthinwire_c.so exports the listed functions, those of its header, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path


def main():
    library, header, listed_in = sys.argv[1:]
    listed = set(re.findall(r"\b(thinwire_\w+);", Path(listed_in).read_text()))
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
    for name in sorted(listed | declared | exported):
        places = {"listed": listed, "declared": declared, "exported": exported}
        missing = [place for place, names in places.items() if name not in names]
        if missing:
            print(f"{name} is not {' and not '.join(missing)}")
    if len(listed) < 20:
        print(f"only {len(listed)} functions are listed")
    return 0 if listed == declared == exported and len(listed) >= 20 else 1


if __name__ == "__main__":
    sys.exit(main())
