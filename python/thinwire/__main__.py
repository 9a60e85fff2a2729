# SPDX-License-Identifier: Apache-2.0
"""python -m thinwire doctor: what this machine and installation have."""

import argparse
import sys

from . import Error, __version__


def main() -> int:
    """Exits with 0: done; 1: it failed, with a line on stderr; 2: wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m thinwire", description="Checks an installation of Thinwire"
    )
    parser.add_argument(
        "--version", action="version", version=f"thinwire {__version__}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "doctor",
        help="what this machine and installation have",
        description="Says what this machine and installation have; under torchrun or "
        "mpirun once for all ranks, which exchange messages on the way. Ends with 1 if "
        "Thinwire cannot train here.",
    )
    parser.parse_args()

    from ._doctor import run_doctor

    try:
        return run_doctor()
    except Error as error:
        print(f"thinwire doctor: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
