# SPDX-License-Identifier: Apache-2.0
"""python -m thinwire doctor | plan | device-report | telemetry tensorboard FILE... DIR."""

import argparse
import sys

from . import Error, __version__
from ._plan import add_arguments, run_plan


def main() -> int:
    """Exits with 0: done; 1: it failed, with a line on stderr; 2: wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m thinwire",
        description="Checks an installation of Thinwire, and shows what runs wrote",
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
    add_arguments(
        commands.add_parser(
            "plan",
            help="what a step would take with each way to average",
            description="What a step would take, send and keep with each way to "
            "average; under torchrun on the network and processors that it measures.",
        )
    )
    report = commands.add_parser(
        "device-report",
        help="compare the device of this machine with the CPU",
        description="Trains small models on the device that torch finds and on the CPU, with "
        "two ranks, compares results bit by bit and measures copies and a step. Writes a "
        "file that can be sent in an issue; it names the device and versions, and nothing "
        "else of the machine. Takes some minutes.",
    )
    report.add_argument("--file", default="thinwire-device-report.txt")
    report.add_argument(
        "--params", type=int, default=25_000_000, help="of the model that is measured"
    )
    telemetry = commands.add_parser(
        "telemetry", help="turn a file of steps into charts"
    )
    charts = telemetry.add_subparsers(dest="to", required=True, metavar="TO")
    tensorboard = charts.add_parser(
        "tensorboard",
        help="a file for TensorBoard",
        description="Writes every number of the FILEs, lines of thinwire.telemetry.path "
        "or train_gpt's metrics.jsonl, into DIR as one run for TensorBoard.",
    )
    tensorboard.add_argument("files", metavar="FILE", nargs="+")
    tensorboard.add_argument("directory", metavar="DIR")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except Error as error:
        print(f"thinwire {arguments.command}: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "telemetry":
        from ._telemetry import to_tensorboard

        lines = to_tensorboard(arguments.files, arguments.directory)
        print(
            f"{lines} lines of {', '.join(arguments.files)}: tensorboard --logdir "
            f"{arguments.directory} shows them (pip install tensorboard)"
        )
        return 0
    if arguments.command == "device-report":
        from ._device_report import run_device_report

        return run_device_report(arguments.file, arguments.params)
    if arguments.command == "plan":
        return run_plan(arguments)
    from ._doctor import run_doctor

    return run_doctor()


if __name__ == "__main__":
    sys.exit(main())
