# SPDX-License-Identifier: Apache-2.0
"""A process ends, whatever of the native module is still alive."""

from __future__ import annotations

import sys
import textwrap

import pytest
import ranks

EXITS = {
    "idle": "",
    "closed by nobody": "keep = (group, optimizer)",
    "waiting": "threading.Thread(target=group.barrier, daemon=True).start(); entered.wait(10)",
}


@pytest.mark.parametrize("last", EXITS.values(), ids=EXITS)
def test_the_interpreter_ends(last: str) -> None:
    """With a group of Python's transport that nobody has closed, and one call under way."""
    script = f"""
        import threading, time, torch
        from thinwire import _core
        from native import config, layout
        entered = threading.Event()
        class Sleeping:
            name, rank, size = "sleeping", 0, 2
            def exchange(self, *_):
                entered.set()
                time.sleep(1.5)
                raise RuntimeError("late")
            def give_up(self, reason):
                pass
        alone = _core.local_group(1)[0]
        group = _core.over(Sleeping())
        optimizer = _core.Optimizer(alone, layout(), config(), torch.zeros(1257))
        {last}
        print("done", flush=True)
    """
    ended = ranks.program(sys.executable, "-c", textwrap.dedent(script))
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_a_subinterpreter_is_refused_and_the_process_ends() -> None:
    """Its exit would be taken for that of the process."""
    script = """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        code = "try: import thinwire\\nexcept ImportError as error: print(error, flush=True)"
        kept = interpreters.create()
        interpreters.run_string(kept, code)
    """
    ended = ranks.program(sys.executable, "-c", textwrap.dedent(script))
    assert ended.returncode == 0, ended.stderr
    assert "not in a subinterpreter" in ended.stdout
