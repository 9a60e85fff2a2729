# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an Engine, with DeepSpeed's names."""

from __future__ import annotations

import glob
import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import torch

from .. import _core, _log
from .._agreement import agreed, gathered
from .._checkpoints import (
    SAVED_AS,
    Loaded,
    LoadReport,
    Saved,
    extras_of,
    finish_load,
    load_options,
    random_state_in,
    save_options,
    saved_in,
)
from .._paths import path_of, require_utf8
from ..comm.calls import in_call
from ..errors import Error, InvalidArgument, Unavailable
from ..optim._edits import may_be_behind
from ._base import EngineBase
from ._counters import (
    CLIENT_STATE,
    from_text,
    pack,
    require_restorable,
    restore,
    to_text,
)
from .leaders.core import LedCore

T = TypeVar("T")


class Saving(EngineBase):
    """save_checkpoint(), load_checkpoint() and save_16bit_model() of Engine."""

    @in_call("save_checkpoint()")
    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves under a name, done on return; returns True. Collective.

        SAVE_DIR/<tag>/ is a directory of Thinwire's checkpoints with one step-<steps>
        in it. A later one of the same tag replaces it. With `save_latest`,
        SAVE_DIR/latest has the tag, like DeepSpeed's. Any number of ranks can load it.
        With a model-parallel group all its ranks pass the same SAVE_DIR, and rank N of it
        saves its part of the model in SAVE_DIR/<tag>/mp_rank_NN/.

        tag: a file name, the same on all ranks; None for global_step<N>.
        client_state: values that JSON can hold; tuples become lists. Rank 0's is saved.
        exclude_frozen_parameters: whether to omit frozen parameters and buffers.

        Raises KeyError for a name that DeepSpeed's checkpoints use themselves. Raises
        InvalidArgument for values that JSON cannot hold or tags that differ. Raises
        Unavailable if a file cannot be written, and FailedPrecondition inside a window
        of accumulation. All ranks raise together.
        """
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)

        def checked() -> tuple[str, str]:
            require_tag(tag)
            return to_text(client_state or {}), path_of("save_dir", save_dir)

        def of_part() -> tuple[str, str]:
            text, directory = agreed(self._comm, checked)
            self._comm.require_same("save_checkpoint: tag", tag)
            return gathered(self._comm, text)[0], directory

        text, directory = agreed(self._together, of_part)
        self._require_same_in_parts("save_checkpoint: tag", tag)
        root = self._in_part(os.path.join(directory, tag))
        options = save_options({"frozen": not exclude_frozen_parameters})
        common, own = extras_of(None, None)
        extra = ({**common, CLIENT_STATE: text}, own)
        is_first = self._together is None or self._together.rank == 0

        def save() -> None:
            self._save(root, extra, options)
            self._native.retain(root, 1)

        def name_latest() -> None:
            if save_latest and is_first:
                self._on_rank_0(lambda: write_latest(directory, tag))

        agreed(self._together, save)
        agreed(self._together, name_latest)
        return True

    @in_call("load_checkpoint()")
    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable[..., Any] | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Resumes from what save_checkpoint() wrote on any number of ranks. Collective.

        Returns its path and the client_state. If `tag` is None and LOAD_DIR has no file
        `latest`, it warns and returns (None, None).

        load_module_strict: if False, parameters may be missing in either, but not all.
          One warning names them.
        load_optimizer_states: if False, loads weights, and masters as they were saved.
          Moments and the number of applied steps begin anew, and so does the
          configuration's schedule.
        load_module_only: does the same, and does not change the engine's counters.

        Raises the errors of thinwire.load(), Unavailable for `custom_load_fn`, and
        InvalidArgument for tags that differ from rank to rank. A directory of DeepSpeed
        is refused with the command that converts it.
        """

        def checked() -> str:
            if custom_load_fn is not None:
                raise Unavailable("custom_load_fn: must be None, it is not supported")
            return path_of("load_dir", load_dir)

        def of_part() -> tuple[str, str | None]:
            directory = agreed(self._comm, checked)
            named = "none" if tag is None else f"'{tag}'"
            self._comm.require_same(
                "load_checkpoint: tag and load_module_strict",
                f"{named}\n{bool(load_module_strict)}",
            )
            name = str(tag)
            if tag is None:
                name = self._on_rank_0(lambda: read_latest(directory))
                if not name:
                    agreed(self._comm, lambda: refuse_foreign(directory))
                    return directory, None
            agreed(self._comm, lambda: require_tag(name))
            return directory, name

        directory, name = agreed(self._together, of_part)
        self._require_same_in_parts("load_checkpoint: tag", name or "")
        if name is None:
            if self.global_rank == 0:
                _log.logger.warning(
                    "nothing was loaded: %s has no file 'latest'. If it has a "
                    "checkpoint, pass its tag",
                    directory,
                )
            return None, None
        root = self._on_rank_0(lambda: self._root_of(os.path.join(directory, name)))
        only_weights = load_module_only or not load_optimizer_states
        options = load_options(
            {"weights_only": only_weights, "strict": bool(load_module_strict)}
        )

        def load() -> tuple[LoadReport, dict[str, Any]]:
            loaded = self._restored(
                root, options, not load_module_only, load_lr_scheduler_states
            )
            if loaded is None:
                raise Unavailable(f"{root}: there is no complete checkpoint")
            return loaded

        report, state = agreed(self._together, load)
        return report.path, state

    @in_call("save_16bit_model()")
    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the module's state_dict() with torch.save(), in the parameters'
        precision. Collective; rank 0 writes. With a model-parallel group rank N of it
        writes its part to SAVE_DIR/mp_rank_NN/. Returns True. Raises Unavailable on all
        ranks if rank 0's file cannot be written.
        """

        def write() -> str:
            folder = self._in_part(path_of("save_dir", save_dir))
            os.makedirs(folder, exist_ok=True)
            state = self.module_state_dict(
                exclude_frozen_parameters=exclude_frozen_parameters
            )
            torch.save(state, os.path.join(folder, save_filename))
            return ""

        self._on_rank_0(write)
        return True

    # ---- parts of a model that several ranks hold together

    def _in_part(self, folder: str) -> str:
        """Returns the folder of this rank's part, or `folder` if it holds the whole."""
        together = self._together
        if together is None or together.size == 1:
            return folder
        return os.path.join(folder, f"{_PART}{together.rank:02d}")

    def _root_of(self, tagged: str) -> str:
        part = self._in_part(tagged)
        # Earlier versions saved every part below a directory of its own.
        return part if os.path.isdir(part) else tagged

    def _require_same_in_parts(self, what: str, text: str) -> None:
        if self._together is not None:
            self._together.require_same(what, text)

    # ---- for thinwire.save and thinwire.load

    def _save(
        self,
        root: str,
        extra: tuple[dict[str, Any], dict[str, Any]],
        options: _core.SaveOptions,
    ) -> Saved:
        core = self._made

        def check() -> None:
            if self._backwards == 0:  # otherwise the engine refuses, on all ranks
                self._require_same_parameters(at_start=True)
                self._take_in_edits()
            self.optimizer.tell_rates(core)

        agreed(self._comm, check)
        if options.frozen:
            self._others.warn_at_save(self._progress.notices)
        common, own = extra
        own = {**own, SAVED_AS: self._progress.run.to_text()}
        common = {**common, **pack(self)}
        report: Saved
        if isinstance(core, LedCore):
            report = core.save(root, common, own, options)
        else:
            report = core.save(root, (common, own), options)
        if options.local_steps == _core.LocalSteps.synchronize:
            self._written(is_behind=False)
        _log.forward(self._comm)
        return report

    @in_call("wait_for_save()")
    def wait_for_save(self) -> None:
        """Blocks until an asynchronous save is done, and raises its error. Collective."""
        self._made.wait_for_save()

    def _restored(
        self,
        path: str,
        options: _core.LoadOptions,
        counters: bool,
        with_scheduler: bool = True,
    ) -> tuple[LoadReport, dict[str, Any]] | None:
        """Loads the newest checkpoint, if there is one, and its client_state. Collective."""

        def accept(native: dict[str, Any]) -> None:
            found = Loaded.of(native, self.global_rank)
            from_text(found)
            if not options.weights_only:
                random_state_in(found)
            if counters:
                require_restorable(self, found, with_scheduler)

        # Otherwise a relocated parameter would overwrite the loaded values.
        agreed(self._comm, self._memory.make_writable)
        native = self._made.resume(path, options, accept=accept)
        if native is None:
            _log.forward(self._comm)
            return None
        found = native
        if not isinstance(found, Loaded):
            found = Loaded.of(found, self.global_rank)
        report = self._loaded(found, options.weights_only)
        if counters:
            restore(self, found, with_scheduler)
        return report, from_text(found)

    def _loaded(self, found: Loaded, only_weights: bool) -> LoadReport:
        self._others.write_back()
        if self._hosts is not None:  # followers have not read the file
            trained = self._memory.parameters
            self._buffers_of_module.send_frozen(self.module, trained)
            self._buffers_of_module.make_equal(_core.Buffers.broadcast)
        self._written(is_behind=may_be_behind(self._config, self._native.phase))
        if not only_weights:
            self.optimizer.loaded(self._native, found.scalars)
            ranks = len(found.own_of_ranks)
            self._progress.run.continue_from(saved_in(found), ranks)
        self.optimizer.show_rates(self._config, self._native.steps)
        _log.forward(self._comm)
        report = finish_load(found, sets_random_state=not only_weights)
        self._others.add_note_of_load(report.notes)
        return report

    def _on_rank_0(self, action: Callable[[], str]) -> str:
        """Returns rank 0's result, or raises its error as Unavailable. Collective."""
        done: dict[str, str] = {"result": "", "error": ""}
        interrupt: BaseException | None = None
        if self._comm.rank == 0:
            try:
                done["result"] = action()
            except BaseException as error:  # noqa: BLE001  others must not wait
                is_ours = isinstance(error, (OSError, Error))
                done["error"] = (
                    f"{'' if is_ours else type(error).__name__ + ': '}{error}"
                )
                interrupt = None if isinstance(error, Exception) else error
        done = json.loads(gathered(self._comm, json.dumps(done))[0])
        if interrupt is not None:
            raise interrupt
        if done["error"]:
            raise Unavailable(done["error"])
        return done["result"]


LATEST = "latest"
_PART = "mp_rank_"
"""Begins the names of directories of parts of a model."""
_MOST_BYTES = 200


def require_tag(tag: str) -> None:
    """Raises InvalidArgument unless it can be the name of a directory."""
    require_utf8("tag", tag)
    if (
        not 0 < len(tag.encode()) <= _MOST_BYTES
        or tag in (".", "..", LATEST)
        or any(c in tag for c in "/\\\0\n\r")
    ):
        raise InvalidArgument(
            f"tag: must be a file name of 1 to {_MOST_BYTES} bytes other than "
            f"'{LATEST}', got {tag!r:.60}"
        )


def write_latest(directory: str | os.PathLike[str], tag: str) -> str:
    """Puts the tag into `latest`, which has the old one until the new file is whole."""
    temporary = os.path.join(directory, f".latest-{uuid.uuid4().hex}")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(tag)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, os.path.join(directory, LATEST))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return tag


def read_latest(directory: str | os.PathLike[str]) -> str:
    """Returns the tag in `latest`; empty if there is no such file."""
    path = os.path.join(directory, LATEST)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read(_MOST_BYTES + 1).rstrip("\r\n")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise Unavailable(f"{path}: is not UTF-8: {error}") from None


def refuse_tagged(directory: str) -> None:
    """Raises InvalidArgument if directories within this one have checkpoints. Local."""
    root = os.path.abspath(directory)
    holders: dict[str, str] = {}  # by directory of a tag
    for within in ("*", f"*/{_PART}*"):
        below = os.path.join(glob.escape(root), within, "step-*", "manifest.json")
        for path in sorted(glob.iglob(below)):
            holder = os.path.dirname(os.path.dirname(path))
            is_part = os.path.basename(holder).startswith(_PART)
            tagged = os.path.dirname(holder) if is_part else holder
            holders.setdefault(tagged, holder)
    if not holders:
        return
    newest = os.path.join(root, read_latest(root))
    tagged = newest if newest in holders else min(holders)
    call = "engine.load_checkpoint({!r}, {!r})".format(*os.path.split(tagged))
    cure = f"call {call}, which loads what save_checkpoint() wrote"
    if holders[tagged] == tagged:
        cure = f"pass that path, or, if save_checkpoint() wrote it, call {call}"
    raise InvalidArgument(
        f"path: {directory} has no complete checkpoint of its own, but "
        f"{holders[tagged]!r} has: {cure}"
    )


def refuse_foreign(directory: str) -> None:
    """Raises InvalidArgument if DeepSpeed wrote this directory, or a script converted its
    states to it. Local.
    """
    if os.path.exists(os.path.join(directory, "optimizer.safetensors")):
        raise InvalidArgument(
            f"load_dir: {directory} has converted states: load them with "
            f"thinwire.load('{directory}', engine)"
        )
    with suppress(Unavailable):
        _core.inspect(directory)
