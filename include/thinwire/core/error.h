// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace thinwire {

/// Kind of failure that an Error reports. It decides what the caller may still
/// do.
enum class ErrorCode {
  /// An argument or option is outside its range. Nothing has changed.
  kInvalidArgument,
  /// The call does not fit the object's present state. Nothing has changed,
  /// unless Engine::step() has found changed values.
  kFailedPrecondition,
  /// This build or machine lacks the requested feature. Nothing has changed.
  kUnavailable,
  /// A peer was lost, hung, or disagreed. The communicator and every object
  /// that uses it may only be destroyed.
  kCommFailure,
  /// An accelerator failed. Its objects may only be destroyed.
  kDeviceFailure,
  /// Saved state is incomplete, altered, or of another model. Nothing has
  /// changed.
  kCorruptCheckpoint,
  /// Gradients are not finite at any loss scale. Parameters and states are
  /// those of the last good step. A sync of an outer loop also reports
  /// parameters that are not finite; then load a checkpoint.
  kNonFinite,
};

/// Returns the code's name as written above, without the k: "InvalidArgument".
[[nodiscard]] const char* to_string(ErrorCode code) noexcept;

/// The exception of this library, which also throws std::bad_alloc. With
/// kInvalidArgument the message names the argument, its range and its value.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace thinwire
