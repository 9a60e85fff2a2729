# SPDX-License-Identifier: Apache-2.0
"""thinwire doctor | plan | config check FILE | telemetry …

The same as `python -m thinwire …`.
"""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

from . import Error, __version__, _core

_IS_SCRIPT = Path(sys.argv[0]).name == "thinwire"
_PROGRAM = "thinwire" if _IS_SCRIPT else "python -m thinwire"
# Commands that the C++ library parses and runs, like the program `thinwire`.
_SHARED = {
    "doctor": "show what this machine and installation have",
    "plan": "predict the time of a step with each way to average",
    "config": "show the effect of each key of a configuration file",
}
# Commands of earlier versions, and their replacements.
_GONE = {"device-report": "run python/tests/device_report.py of a clone"}


def main() -> int:
    """Exits with 0 after success, 1 after an error, with a line on stderr, or 2 for
    wrong usage.
    """
    if sys.argv[1:] and sys.argv[1] in _SHARED:
        return _run_shared(sys.argv[1:])
    if sys.argv[1:] and sys.argv[1] in _GONE:
        instead = _GONE[sys.argv[1]]
        print(f"{_PROGRAM}: there is no {sys.argv[1]}; {instead}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Checks an installation of Thinwire, and shows what runs wrote",
        epilog="A C++ build has a program `thinwire` with further commands: bench, "
        "checkpoint and replay.",
    )
    parser.add_argument(
        "--version", action="version", version=f"thinwire {__version__}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in _SHARED.items():
        commands.add_parser(name, help=purpose)
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
        from ._monitors import to_tensorboard

        lines = to_tensorboard(arguments.files, arguments.directory)
    except Error as error:
        print(f"thinwire {arguments.command}: {error}", file=sys.stderr)
        return 1
    _print(
        os.fsencode(
            f"{lines} lines of {', '.join(arguments.files)}: tensorboard --logdir "
            f"{arguments.directory} shows them\n"
        )
    )
    return 0


def _run_shared(arguments: list[str]) -> int:
    """Collective under a launcher, except for `config`."""
    from ._doctor import lines, why_no_torch, why_not_joined

    is_doctor = arguments[0] == "doctor"
    no_torch = why_no_torch() if is_doctor else ""
    not_ready = no_torch or (why_not_joined() if is_doctor else "")
    is_launched = False
    if not not_ready and arguments[0] != "config":
        from .comm.groups import launched_ranks

        is_launched = launched_ranks() > 1
    with contextlib.ExitStack() as joined:

        def join() -> _core.Communicator:
            import torch.distributed as dist

            from .comm import communicator_for, init_distributed

            init_distributed("gloo", verbose=False)
            joined.callback(dist.destroy_process_group)
            communicator = communicator_for()
            joined.callback(communicator.close)
            return communicator

        code, out, err = _core.run_command(
            _PROGRAM,
            [os.fsencode(argument) for argument in arguments],
            join if is_launched else None,
            list(lines(no_torch)) if is_doctor else [],
            not_ready,
            _copies_gbps,
        )
    _write(sys.stderr, err)
    _print(out)
    return code


def _copies_gbps() -> float:
    """Returns the rate of copies to this machine's device, or 0 if there is none."""
    from ._doctor import why_no_torch

    if why_no_torch():
        return 0.0
    from ._staging import copies_gbps

    return copies_gbps()


def _write(stream: TextIO, text: bytes) -> None:
    """Writes bytes as they are, or as text to a stream without a buffer."""
    stream.flush()
    if hasattr(stream, "buffer"):
        stream.buffer.write(text)
    else:
        stream.write(text.decode(errors="backslashreplace"))
    stream.flush()


def _print(text: bytes) -> None:
    """Writes to stdout. If that fails, ends the program with 1 and a line on stderr."""
    try:
        _write(sys.stdout, text)
    except OSError as error:
        # Without this redirection, writing the rest of the buffer would fail again at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(
            f"{_PROGRAM}: the results could not be written to stdout: {error.strerror}"
        )


if __name__ == "__main__":
    sys.exit(main())
