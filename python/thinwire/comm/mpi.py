# SPDX-License-Identifier: Apache-2.0
"""MPI through mpi4py, which is built for the installed MPI's binary interface."""

from __future__ import annotations

import sys
import time
from typing import Any

from ..errors import InvalidArgument, Unavailable
from .lifetime import call_after_close
from .transport import Broken, ChannelTransport, Exchange, Messages

_PART = 1 << 30
"""Largest part of a message, because MPI counts are ints. Parts arrive in order."""
_REASON = 512
_EAGER_TRIES = 1000
_PAUSE = 50e-6


class Mpi4pyTransport(ChannelTransport):
    """A transport over a duplicate of `comm`, an mpi4py.MPI.Intracomm; None is
    MPI.COMM_WORLD. The constructor is collective over `comm`.

    Raises InvalidArgument unless `comm` is such a communicator and contains this rank.
    Raises Unavailable without mpi4py, or without MPI_THREAD_MULTIPLE, which mpi4py
    requests by itself. A rank that dies is noticed at the time limit, or by mpirun. If
    a rank hangs, programs that end would wait for it in MPI_Finalize. Instead, these
    programs wait for one more time limit, and then call MPI_Abort.
    """

    def __init__(self, comm: Any = None) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise Unavailable(
                f"mpi4py cannot be imported ({error}): pip install mpi4py"
            ) from None
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise Unavailable("mpi4py: MPI must provide MPI_THREAD_MULTIPLE")
        given = MPI.COMM_WORLD if comm is None else comm
        if not isinstance(given, MPI.Intracomm) or given == MPI.COMM_NULL:
            got = "MPI.COMM_NULL" if given == MPI.COMM_NULL else type(given).__name__
            raise InvalidArgument(
                f"comm: must be an mpi4py.MPI.Intracomm that has this rank, got {got}"
            )
        own = given.Dup()
        super().__init__(
            "mpi4py", _MpiChannel(MPI, own), own.Get_rank(), own.Get_size()
        )


class _MpiChannel:
    def __init__(self, mpi: Any, comm: Any) -> None:
        self.given_up: str | None = None
        self._mpi, self._comm = mpi, comm
        # Reasons to give up are sent with tag 0. Only MPI_COMM_WORLD has the attribute.
        self._tags = min(int(mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)), 0x3FFFFFFF)
        self._reasons: dict[int, str] = {}
        self._kept: list[Any] = []
        self._longest = 0.0
        """Seconds of the longest time limit so far."""
        self._patience = float("inf")
        """Seconds to wait for the other ranks at exit; finite after a rank was late."""
        call_after_close(self._end_together)

    def move(
        self, receives: Messages, sends: Messages, of: Exchange, seconds: float
    ) -> None:
        self._longest = max(self._longest, seconds)
        end = time.monotonic() + seconds
        peers: list[int] = []
        requests: list[Any] = []
        for post, messages in ((self._comm.Irecv, receives), (self._comm.Isend, sends)):
            for peer, memory in messages:
                tag = 1 + (of.salt ^ len(memory) * 40503) % self._tags
                for begin in range(0, len(memory), _PART):
                    peers.append(peer)
                    part = memory[begin : begin + _PART]
                    requests.append(post([part, self._mpi.BYTE], peer, tag))
        tries = 0
        while not self._mpi.Request.Testall(requests):
            tries += 1
            if tries <= _EAGER_TRIES:
                continue
            self._hear()
            told = [peer for peer in peers if peer in self._reasons]
            if told or self.given_up is not None or time.monotonic() > end:
                late = [
                    p
                    for p, request in zip(peers, requests, strict=True)
                    if not request.Test()
                ]
                self._abandon(
                    requests[: sum(-(-len(m) // _PART) for _, m in receives)], requests
                )
                if late and not told and self.given_up is None:
                    self._patience = self._longest
                raise Broken(told or sorted(set(late)), None)
            time.sleep(_PAUSE)

    def reason_of(self, peer: int) -> str | None:
        return self._reasons.get(peer)

    def give_up(self, reason: str) -> None:
        text = bytearray(reason.encode()[:_REASON])
        for peer in range(self._comm.Get_size()):
            if peer != self._comm.Get_rank():
                self._kept.append(self._comm.Isend([text, self._mpi.BYTE], peer, 0))

    def _end_together(self) -> None:
        """Waits until all ranks end, as MPI_Finalize would, or aborts all ranks."""
        if self._mpi.Is_finalized():
            return
        end = time.monotonic() + self._patience
        all_end = self._comm.Ibarrier()
        while not all_end.Test():
            if time.monotonic() > end:
                print("thinwire: a rank hangs, so MPI_Abort ends all", file=sys.stderr)
                sys.stdout.flush()
                self._mpi.COMM_WORLD.Abort(1)
            time.sleep(_PAUSE)

    def _hear(self) -> None:
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, 0, status):
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([text, self._mpi.BYTE], status.Get_source(), 0)
            self._reasons[status.Get_source()] = text.decode(errors="replace")

    def _abandon(self, receives: list[Any], requests: list[Any]) -> None:
        """Cancels receives, because the caller uses their memory again."""
        for request in receives:
            if not request.Test():
                request.Cancel()
                request.Wait()
        self._kept.append(requests)
