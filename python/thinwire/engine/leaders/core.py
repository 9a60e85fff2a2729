# SPDX-License-Identifier: Apache-2.0
"""The native engine of a leader, as all ranks of its host see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from torch.utils.dlpack import from_dlpack

from ... import _core
from ..._checkpoints import Loaded, SavedByLeader, own_of_host, packed, unpacked
from ..._log import logger
from ...comm.host_group import HostGroup, leaders_here, threads_of_leader
from ...errors import BY_CODE, CommFailure, Error, FailedPrecondition
from ...report import EngineReport

_TOLD = (
    *("loss_scale", "loss_factor", "steps", "skipped_steps"),
    *("phase", "freeze_step"),
)
"""Properties whose values the leader sends to its host with each result."""
_OF_LEADER = (
    *("gradient_ready", "set_learning_rate", "set_weight_decay", "set_exp_avg_mask"),
    *("read_masters", "set_others"),
)
"""Calls that do nothing on followers, which are the other ranks of the host."""
_SHARED = (
    *("full_parameter", "full_gradient", "full_state"),
    *("set_full_parameter", "set_full_gradient", "set_full_state"),
    *("load_state_dict", "retain", "wait_for_save"),
)
"""Calls whose results all ranks of the host receive."""


class LedCore:
    """Offers the members of _core.Engine on every rank of a host. The leader calls its
    engine, and the followers receive the results or the errors.

    Calls that are collective or local in _core.Engine are collective here, except the
    calls of a backward, set_learning_rate() and read_masters(). The native engine sees
    one backward per window.
    """

    def __init__(
        self,
        hosts: HostGroup,
        comm: _core.Communicator,
        config: _core.Config,
        layout: _core.Layout,
        kinds: str,
        make: Callable[[_core.Communicator, _core.Config], _core.Engine],
    ) -> None:
        """Collective. `kinds` names the dtypes of the parameters. make() constructs the
        leader's engine, and its errors are raised on all ranks of the host. Raises
        InvalidArgument on all ranks if their parameters or configurations differ.
        """
        self.hosts = hosts
        self._comm = comm
        self._window = config.batch(comm.size)[2]
        self._rates = range(layout.num_groups)
        self._given: bool | None = None
        self._is_last = False
        self._in_evaluation = False
        self.backwards = 0
        """Number of backwards that have ended since the last step at a boundary."""
        self.has_sent = False
        """Whether gradients of this backward have been sent to the leader."""
        self._native: _core.Engine | None = None
        settings = _core.config_of_leaders(config, comm.size, hosts.size)
        # The engines of the leaders make this comparison as well, but followers have no
        # engine.
        comm.require_same(
            "parameter layout and configuration",
            layout.describe() + kinds + config.describe() + config.describe_groups(),
        )

        def construct() -> None:
            assert hosts.between is not None
            threads = threads_of_leader(
                settings.comm.num_threads, leaders_here(hosts.between)
            )
            settings.comm.num_threads = threads
            if comm.rank == 0 and threads > 0:
                logger.info(
                    "the leader of this host computes with %d thread(s)", threads
                )
            self._native = make(hosts.between, settings)
            self._native.set_accumulation_boundary(True)

        self._shared(construct)

    def __getattr__(self, name: str) -> Any:
        if name in _TOLD:
            return self._told[name]
        if name in _OF_LEADER:
            return getattr(self._native, name, lambda *_: None)
        if name in _SHARED:
            return lambda *given: self._shared(
                lambda: _as_tensor(getattr(self._own, name)(*given))
            )
        raise AttributeError(name)

    def lamb_coeffs(self) -> list[float]:
        return list(self._told["coeffs"])

    def learning_rate(self, group: int) -> float:
        return float(self._told["rates"][group])

    # ---- windows

    @property
    def is_boundary(self) -> bool:
        if self._is_last:
            return True
        if self._given is not None:
            return self._given
        return self.backwards == 0 and self._window == 1

    def set_accumulation_boundary(self, boundary: bool | None) -> None:
        self._given = boundary

    def begin_backward(self) -> None:
        if self._in_evaluation:
            raise FailedPrecondition("begin_backward: inside an evaluation")
        if self._is_last:
            raise FailedPrecondition(
                f"begin_backward: the window of {self.backwards} backward(s) is "
                "complete; call step() first, or set gradient_accumulation_steps or the "
                "boundary"
            )
        is_last = self.backwards + 1 >= self._window
        self._is_last = is_last if self._given is None else self._given
        self.has_sent = False
        if self._is_last and self._native is not None:
            self._native.begin_backward()

    def end_backward(self) -> None:
        self.backwards += 1
        if self._is_last and self._native is not None:
            self._native.end_backward()

    def cancel_backward(self, reason: str) -> None:
        sent, self.has_sent = self.has_sent, False
        self.backwards, self._is_last = 0, False
        if sent:
            self.hosts.give_up(reason)
            raise CommFailure(
                "cancel_backward: gradients have been sent before backward failed, so "
                f"this rank has given up: {reason}"
            )
        if self._native is not None:
            self._native.cancel_backward(reason)

    def step(
        self, final_range: Callable[[int, int], None] | None = None
    ) -> EngineReport:
        if not self.backwards:
            raise FailedPrecondition("step: no backward since the last step")
        if not self._is_last:
            skipped = EngineReport.skipped(self.phase, self.loss_scale)
            return replace(skipped, steps=self.steps)
        self.backwards, self._is_last = 0, False
        made = self._shared(
            lambda: asdict(EngineReport.of(self._own.step(final_range)))
        )
        return EngineReport(**made)

    def mean(self, value: float) -> float:
        texts = self._comm.gather_texts(f"{self.steps} {value!r}")
        steps, values = zip(*(text.split() for text in texts), strict=True)
        if len(set(steps)) > 1:
            raise FailedPrecondition(
                f"mean: ranks have made different numbers of steps: {', '.join(steps)}"
            )
        return sum(map(float, values)) / len(values)

    def begin_evaluation(self) -> None:
        self._shared(lambda: self._own.begin_evaluation())
        self._in_evaluation = True

    def end_evaluation(self) -> None:
        self._in_evaluation = False
        if self._native is not None:
            self._native.end_evaluation()

    # ---- values

    def set_loss_scale(self, scale: float) -> None:
        self._comm.require_same("set_loss_scale: loss_scale", repr(scale))
        self._shared(lambda: self._own.set_loss_scale(scale))

    def state_dict(self) -> dict[str, Any]:
        """Returns the leader's state, or an empty dict on followers. Local."""
        return {} if self._native is None else self._native.state_dict()

    # ---- checkpoints

    def save(
        self,
        root: str,
        common: dict[str, Any],
        own: dict[str, Any],
        options: _core.SaveOptions,
    ) -> SavedByLeader:
        """Saves like _core.Engine. The leader saves the values `own` of all ranks of
        its host.
        """
        texts = self.hosts.inside.gather_texts(packed(own))

        def save() -> dict[str, Any]:
            beside = own_of_host(self.hosts.ranks, [unpacked(text) for text in texts])
            report = self._own.save(root, (common, beside), options)
            return {f.name: getattr(report, f.name) for f in fields(SavedByLeader)}

        return SavedByLeader(**self._shared(save))

    def resume(
        self,
        path: str,
        options: _core.LoadOptions,
        *,
        accept: Callable[[dict[str, Any]], None],
    ) -> Loaded | None:
        def resume() -> dict[str, Any] | None:
            found = self._own.resume(path, options, accept=accept)
            return None if found is None else asdict(Loaded.of(found, self._comm.rank))

        found = self._shared(resume)
        return None if found is None else Loaded(**found).of_rank(self._comm.rank)

    def close(self) -> None:
        if self._native is not None:
            self._native.close()
        self.hosts.close()

    # ---- from the leader to its host

    @property
    def _own(self) -> _core.Engine:
        assert self._native is not None
        return self._native

    def _shared(self, action: Callable[[], Any]) -> Any:
        """Returns the leader's result, or raises its error. Collective in the host."""
        inside = self.hosts.inside
        if not self.hosts.is_leader:
            return self._received(unpacked(inside.gather_texts("")[0]))
        failure: Exception | None = None
        said: dict[str, Any] = {}
        try:
            said["result"] = action()
        except CommFailure as error:
            self.hosts.give_up(str(error))  # in case the other ranks do not know yet
            raise
        except Exception as error:  # noqa: BLE001  followers must not wait
            failure = error
            code = error.code if isinstance(error, Error) else type(error).__name__
            said["error"] = [code, str(error)]
        if self._native is not None:
            said["told"] = self._told = _told(self._native, self._rates)
        inside.gather_texts(packed(said))
        if failure is not None:
            raise failure
        return said["result"]

    def _received(self, said: dict[str, Any]) -> Any:
        if "told" in said:
            self._told = said["told"]
        if "error" in said:
            code, text = said["error"]
            if code not in BY_CODE:
                raise FailedPrecondition(f"the leader of this host: {code}: {text}")
            raise BY_CODE[code](text)
        return said["result"]


def _as_tensor(result: Any) -> Any:
    return from_dlpack(result) if hasattr(result, "__dlpack__") else result


def _told(native: _core.Engine, groups: Sequence[int]) -> dict[str, Any]:
    return {
        **{name: getattr(native, name) for name in _TOLD},
        "coeffs": list(native.lamb_coeffs()),
        "rates": [native.learning_rate(group) for group in groups],
    }
