# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Thinwire: one class per error code of the C++ library."""

from __future__ import annotations


class Error(RuntimeError):
    """Base of all exceptions; `code` names the kind of failure, such as
    "InvalidArgument".
    """

    code = "Error"


class InvalidArgument(Error, ValueError):
    """An argument or option is outside its range. Nothing has changed, except where a
    call says that this rank gives up.
    """

    code = "InvalidArgument"


class FailedPrecondition(Error):
    """The call does not fit the object's present state. Nothing has changed, except where
    a call says that this rank gives up.
    """

    code = "FailedPrecondition"


class Unavailable(Error):
    """This build or machine lacks a requested feature or resource. Nothing has changed."""

    code = "Unavailable"


class CommFailure(Error, ConnectionError):
    """A peer was lost, hung, or disagreed. Objects that use the group may only be
    closed.
    """

    code = "CommFailure"


class DeviceFailure(Error):
    """An accelerator failed. Objects that use the accelerator may only be closed."""

    code = "DeviceFailure"


class CorruptCheckpoint(Error):
    """A saved state is incomplete, altered, or of another model. Nothing has
    changed.
    """

    code = "CorruptCheckpoint"


class NonFinite(Error):
    """Gradients are not finite at any loss scale, and the last good step stays applied.
    A sync of an outer loop also reports parameters that are not finite; then load a
    checkpoint.
    """

    code = "NonFinite"


BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        FailedPrecondition,
        Unavailable,
        CommFailure,
        DeviceFailure,
        CorruptCheckpoint,
        NonFinite,
    )
}
