# SPDX-License-Identifier: Apache-2.0
"""Transports written in Python; errors; the GIL."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_transports import Mailboxes, StuckTransport, ThreadTransport
from native import Trained, config, layout
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick


def run_over_threads(size: int, body: Callable[[_core.Communicator], Any]) -> list[Any]:
    """body on every rank of a group over Python queues."""
    boxes = Mailboxes(size)

    def run(comm: _core.Communicator) -> Any:
        group = _core.over(ThreadTransport(boxes, comm.rank), 30)
        result = body(group)
        group.close()
        return result

    return run_local_ranks(size, run)


def test_collectives() -> None:
    def use(comm: _core.Communicator) -> None:
        values = torch.full((5,), float(comm.rank + 1))
        comm.all_reduce(values)
        assert values.tolist() == [6.0] * 5
        comm.all_reduce(values, mean=True)
        assert values.tolist() == [6.0] * 5
        values.fill_(comm.rank)
        comm.broadcast(values, 2)
        assert values.tolist() == [2.0] * 5
        own = torch.tensor([comm.rank], dtype=torch.int64)
        all_ranks = torch.zeros(3, dtype=torch.int64)
        comm.all_gather(own, all_ranks)
        assert all_ranks.tolist() == [0, 1, 2]
        swapped = torch.zeros(3, dtype=torch.int64)
        comm.all_to_all(all_ranks + 10 * comm.rank, swapped)
        assert swapped.tolist() == [comm.rank + 10 * r for r in range(3)]
        assert comm.gather_texts("x" * comm.rank) == ["", "x", "xx"]
        comm.require_same("text", "same")
        with pytest.raises(
            errors.InvalidArgument, match="text must be the same on all ranks"
        ):
            comm.require_same("text", str(comm.rank))
        comm.barrier()

    run_over_threads(3, use)
    run_local_ranks(3, use)


class Failing(ThreadTransport):
    failure: BaseException

    def exchange(self, *_: object) -> None:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (RuntimeError("line\nand line"), "barrier: RuntimeError: line\nand line"),
        (KeyError("x"), "barrier: KeyError: 'x'"),
        (errors.CommFailure("rank 1 has left"), "barrier: rank 1 has left"),
        (SystemExit(3), "barrier: SystemExit: 3"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_transport_raises_fails_the_group(
    failure: BaseException, text: str
) -> None:
    transport = Failing(Mailboxes(2), 0)
    transport.failure = failure
    group = _core.over(transport)
    with pytest.raises(errors.CommFailure) as raised:
        group.barrier()
    assert str(raised.value) == text
    assert isinstance(raised.value, ConnectionError)
    assert raised.value.code == "CommFailure"
    assert transport.reasons == [text]
    with pytest.raises(errors.CommFailure, match="communicator already failed"):
        group.barrier()


def test_a_transport_without_its_members_is_refused() -> None:
    with pytest.raises(AttributeError, match="name"):
        _core.over(object())
    wrong = ThreadTransport(Mailboxes(2), 2)
    with pytest.raises(errors.InvalidArgument, match=r"got rank 2 of 2"):
        _core.over(wrong)
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(
            errors.InvalidArgument, match=r"timeout must be in \(0, 1e9\] seconds"
        ):
            _core.over(ThreadTransport(Mailboxes(2), 0), timeout)


def test_views_are_released_after_the_exchange() -> None:
    transport = StuckTransport()
    transport.released.set()
    group = _core.over(transport)
    with pytest.raises(errors.CommFailure, match="released"):
        group.all_reduce(torch.ones(8))
    assert transport.views
    for view in transport.views:
        with pytest.raises(ValueError, match="released"):
            view[0]


def start_barrier() -> tuple[StuckTransport, _core.Communicator, threading.Thread]:
    """A thread that waits in barrier() until its transport is released."""
    transport = StuckTransport()
    group = _core.over(transport)
    waiting = threading.Thread(
        target=lambda: pytest.raises(errors.CommFailure, group.barrier)
    )
    waiting.start()
    assert transport.entered.wait(
        10
    )  # this thread runs although barrier() has not returned
    return transport, group, waiting


def test_give_up_ends_a_call_that_waits() -> None:
    _, group, waiting = start_barrier()
    group.give_up("enough")
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(errors.CommFailure):
        group.barrier()


def test_a_second_thread_is_refused() -> None:
    transport = StuckTransport()
    engine = Trained(_core.local_group(1)[0], config()).engine

    def others() -> _core.Others:
        transport.exchange([], [], "", 0, 0)
        return _core.Others()

    engine.set_others(others)
    saving = threading.Thread(
        target=lambda: pytest.raises(RuntimeError, engine.save, "unused")
    )
    saving.start()
    assert transport.entered.wait(10)
    with pytest.raises(
        errors.FailedPrecondition, match="another call of this object has not"
    ):
        engine.state_dict()
    assert engine.steps == 0  # what is only looked at may be looked at
    transport.released.set()
    saving.join(10)
    assert not saving.is_alive()
    assert engine.state_dict()


def test_closing_needs_no_gil_of_the_caller() -> None:
    """The communication thread takes it to drop the transport."""
    transport = ThreadTransport(Mailboxes(2), 0)
    dropped = weakref.ref(transport)
    group = _core.over(transport)
    del transport
    group.close()
    group.close()
    gc.collect()
    assert group.closed
    assert dropped() is None
    with pytest.raises(errors.FailedPrecondition, match="this communicator is closed"):
        group.barrier()


def test_closing_while_another_thread_waits() -> None:
    transport, group, waiting = start_barrier()
    group.close()
    transport.released.set()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("failure", "kind", "base"),
    [
        (lambda: _core.local_group(0), errors.InvalidArgument, ValueError),
        (lambda: _core.Layout([("", (1,), 0)]), errors.InvalidArgument, ValueError),
        (lambda: _core.inspect("/no/such/folder"), errors.Unavailable, RuntimeError),
        (lambda: _core.parse_duration("5 parsecs"), errors.InvalidArgument, ValueError),
    ],
)
def test_failures_are_classes_of_errors(
    failure: Callable[[], object], kind: type[errors.Error], base: type[Exception]
) -> None:
    with pytest.raises(kind) as raised:
        failure()
    assert isinstance(raised.value, base)
    assert raised.value.code == kind.__name__
    assert errors.BY_CODE[raised.value.code] is kind


def test_a_programs_own_error_has_the_code_of_its_kind() -> None:
    class Own(errors.InvalidArgument):
        pass

    assert Own.code == "InvalidArgument"


def test_layout_describes_itself() -> None:
    made = layout()
    assert made.names == ["w", "empty", "b", "s"]
    assert made.sizes == [231, 0, 1025, 1]
    assert made.offsets == [0, 231, 231, 1256]
    assert (made.size, made.num_groups) == (1257, 2)
    assert made.describe().splitlines()[0] == "w 33x7 group 0"
    assert made.hash() == layout().hash()
    assert _core.Layout([("w", torch.Size([3]), 0)], 4).num_groups == 4
