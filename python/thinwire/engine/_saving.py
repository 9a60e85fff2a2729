# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an Engine, and directories with DeepSpeed's names."""

from __future__ import annotations

import glob
import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

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
    random_state_in,
    save_options,
    saved_in,
)
from .._paths import path_of, require_utf8
from ..errors import Error, InvalidArgument, Unavailable
from ..optim._edits import may_be_behind
from ._counters import (
    CLIENT_STATE,
    Counts,
    counts_in,
    from_text,
    pack,
    scheduler_state_in,
    to_text,
)
from ._optimizer import EngineOptimizer
from ._progress import Progress
from ._training import Training
from .leaders.core import LedCore


class Checkpoints:
    """Saves and loads the states of an engine. All calls are collective."""

    def __init__(
        self, training: Training, optimizer: EngineOptimizer, progress: Progress
    ) -> None:
        self._training, self._optimizer = training, optimizer
        self._progress = progress
        self._comm, self._together = training.comm, training.together

    # ---- directories by tag: SAVE_DIR/<tag>/step-<steps>, and the file `latest`

    def save_tagged(
        self,
        save_dir: str | os.PathLike[str],
        tag: str,
        client_state: Mapping[str, Any],
        save_latest: bool,
        frozen: bool,
        own: tuple[Counts, Any],
    ) -> None:
        """Implements Engine.save_checkpoint(). `own` is the argument `own` of save()."""

        def checked() -> tuple[str, str]:
            require_tag(tag)
            return to_text(client_state), path_of("save_dir", save_dir)

        def of_part() -> tuple[str, str]:
            text, directory = agreed(self._comm, checked)
            self._comm.require_same("save_checkpoint: tag", tag)
            return gathered(self._comm, text)[0], directory

        text, directory = agreed(self._together, of_part)
        self._require_same_in_parts("save_checkpoint: tag", tag)
        root = self._in_part(os.path.join(directory, tag))
        options = save_options({"frozen": frozen})
        common, of_rank = extras_of(None, None)
        extra = ({**common, CLIENT_STATE: text}, of_rank)
        is_first = self._together is None or self._together.rank == 0

        def save() -> None:
            self.save(root, extra, options, own)
            self._training.native.retain(root, 1)

        def name_latest() -> None:
            if save_latest and is_first:
                self.on_rank_0(lambda: write_latest(directory, tag))

        agreed(self._together, save)
        agreed(self._together, name_latest)

    def find_tagged(
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None,
        strict: bool,
        custom_load_fn: Any,
    ) -> str | None:
        """Returns the directory for load_checkpoint(). If there is neither `tag` nor a
        file `latest`, warns and returns None.
        """

        def checked() -> str:
            require_no_function(custom_load_fn)
            return path_of("load_dir", load_dir)

        def of_part() -> tuple[str, str | None]:
            directory = agreed(self._comm, checked)
            named = "none" if tag is None else f"'{tag}'"
            self._comm.require_same(
                "load_checkpoint: tag and load_module_strict", f"{named}\n{strict}"
            )
            name = str(tag)
            if tag is None:
                name = self.on_rank_0(lambda: read_latest(directory))
                if not name:
                    agreed(self._comm, lambda: refuse_foreign(directory))
                    return directory, None
            agreed(self._comm, lambda: require_tag(name))
            return directory, name

        directory, name = agreed(self._together, of_part)
        self._require_same_in_parts("load_checkpoint: tag", name or "")
        if name is not None:
            tagged = os.path.join(directory, name)
            return self.on_rank_0(lambda: self._root_of(tagged))
        if self._comm.rank == 0:
            _log.logger.warning(
                "nothing was loaded: %s has no file 'latest'. If it has a checkpoint, pass "
                "its tag",
                directory,
            )
        return None

    def load_tagged(
        self, root: str, options: _core.LoadOptions, counts: bool, scheduler: Any
    ) -> tuple[LoadReport, dict[str, Any], Counts]:
        """Calls load() in all parts of the model. Raises Unavailable if there is no
        checkpoint.
        """

        def load() -> tuple[LoadReport, dict[str, Any], Counts]:
            loaded = self.load(root, options, counts, scheduler)
            if loaded is None:
                raise Unavailable(f"{root}: there is no complete checkpoint")
            return loaded

        return agreed(self._together, load)

    def save_16bit(
        self, save_dir: Any, filename: str, state: Callable[[], dict[str, Any]]
    ) -> None:
        """Writes the result of state() with torch.save(), on rank 0."""

        def write() -> str:
            folder = self._in_part(path_of("save_dir", save_dir))
            os.makedirs(folder, exist_ok=True)
            torch.save(state(), os.path.join(folder, filename))
            return ""

        self.on_rank_0(write)

    # ---- parts of a model that several ranks hold together

    def _in_part(self, folder: str) -> str:
        """Returns the folder of this rank's part, or `folder` if this rank holds the
        whole model.
        """
        together = self._together
        if together is None or together.size == 1:
            return folder
        return os.path.join(folder, f"{_PART}{together.rank:02d}")

    def _root_of(self, tagged: str) -> str:
        part = self._in_part(tagged)
        # Earlier versions saved every part in a separate directory.
        return part if os.path.isdir(part) else tagged

    def _require_same_in_parts(self, what: str, text: str) -> None:
        if self._together is not None:
            self._together.require_same(what, text)

    # ---- one checkpoint

    def save(
        self,
        root: str,
        extra: tuple[dict[str, Any], dict[str, Any]],
        options: _core.SaveOptions,
        own: tuple[Counts, Any],
    ) -> Saved:
        """Writes ROOT/step-<steps>. `own` holds the engine's counts, and the program's
        scheduler or None.
        """
        training = self._training
        core = training.made

        def check() -> None:
            if training.backwards == 0:  # inside a window, core.save() raises
                training.require_same_parameters(at_start=True)
                training.take_in_edits()
            self._optimizer.tell_rates(core)

        agreed(self._comm, check)
        if options.frozen:
            training.others.warn_at_save(self._progress.notices)
        common, of_rank = extra
        of_rank = {**of_rank, SAVED_AS: self._progress.notices.to_text()}
        common = {**common, **pack(*own)}
        report: Saved
        if isinstance(core, LedCore):
            report = core.save(root, common, of_rank, options)
        else:
            report = core.save(root, (common, of_rank), options)
        if options.local_steps == _core.LocalSteps.synchronize:
            training.written(is_behind=False)
        _log.forward(self._comm)
        return report

    def load(
        self, path: str, options: _core.LoadOptions, counts: bool, scheduler: Any
    ) -> tuple[LoadReport, dict[str, Any], Counts] | None:
        """Loads the newest checkpoint, or returns None if there is none. Returns the
        report, the client_state and, if `counts`, the engine's counts. A `scheduler`
        other than None receives the saved state.
        """
        training, rank = self._training, self._comm.rank
        samples = training.config.batch(self._comm.size)[0]
        scheduler = scheduler if counts else None

        def accept(native: dict[str, Any]) -> None:
            found = Loaded.of(native, rank)
            from_text(found)
            if not options.weights_only:
                random_state_in(found)
            if counts:
                counts_in(found, samples)
            if scheduler is not None:
                scheduler_state_in(found)

        # Without this call, a relocated parameter would overwrite the loaded values.
        agreed(self._comm, training.memory.make_writable)
        found = training.made.resume(path, options, accept=accept)
        if found is None:
            _log.forward(self._comm)
            return None
        if not isinstance(found, Loaded):
            found = Loaded.of(found, rank)
        report = self._follow(found, options.weights_only)
        if scheduler is not None:
            state = scheduler_state_in(found)
            if state is not None:
                scheduler.load_state_dict(state)
        return report, from_text(found), counts_in(found, samples) if counts else {}

    def _follow(self, found: Loaded, only_weights: bool) -> LoadReport:
        training = self._training
        native, config = training.native, training.config
        training.others.write_back()
        if training.hosts is not None:  # followers do not read the file
            trained = training.memory.parameters
            training.buffers.send_frozen(training.module, trained)
            training.buffers.make_equal(_core.Buffers.broadcast)
        training.written(is_behind=may_be_behind(config, native.phase))
        if not only_weights:
            self._optimizer.loaded(native, found.scalars)
            ranks = len(found.own_of_ranks)
            self._progress.notices.continue_from(saved_in(found), ranks)
        self._optimizer.show_rates(config, native.steps)
        _log.forward(self._comm)
        report = finish_load(found, sets_random_state=not only_weights)
        training.others.add_note_of_load(report.notes)
        return report

    def on_rank_0(self, action: Callable[[], str]) -> str:
        """Returns rank 0's result, or raises its error as Unavailable."""
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
"""Prefix of directory names for parts of a model."""
_MOST_BYTES = 200


def require_no_function(custom_load_fn: Any) -> None:
    if custom_load_fn is not None:
        raise Unavailable("custom_load_fn: must be None, it is not supported")


def require_tag(tag: str) -> None:
    """Raises InvalidArgument unless the tag can be the name of a directory."""
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
    """Writes the tag to `latest`, which keeps the old tag until the new file is
    complete.
    """
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
    """Returns the tag in `latest`, or "" if there is no such file."""
    path = os.path.join(directory, LATEST)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read(_MOST_BYTES + 1).rstrip("\r\n")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise Unavailable(f"{path}: is not UTF-8: {error}") from None


def refuse_tagged(directory: str) -> None:
    """Raises InvalidArgument if subdirectories of this one contain checkpoints. Local."""
    root = os.path.abspath(directory)
    holders: dict[str, str] = {}  # keyed by the directory of a tag
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
    """Raises InvalidArgument if DeepSpeed wrote this directory, or if the directory
    contains states converted from DeepSpeed. Local.
    """
    if os.path.exists(os.path.join(directory, "optimizer.safetensors")):
        raise InvalidArgument(
            f"load_dir: {directory} has converted states: load them with "
            f"thinwire.load('{directory}', engine)"
        )
    with suppress(Unavailable):
        _core.inspect(directory)
