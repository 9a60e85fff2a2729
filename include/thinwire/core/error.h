// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace thinwire {

/// Kind of failure that an Error reports. It determines what the caller may do
/// next.
enum class ErrorCode {
  /// An argument or option is outside its range. Nothing has changed.
  kInvalidArgument,
  /// The object's present state forbids the call. Nothing has changed, unless
  /// Engine::step() has found changed values.
  kFailedPrecondition,
  /// This build or machine lacks the requested feature. Nothing has changed.
  kUnavailable,
  /// A peer is lost, hangs, or disagrees. The communicator and every object
  /// that uses it may only be destroyed.
  kCommFailure,
  /// An accelerator failed. The objects that use it may only be destroyed.
  kDeviceFailure,
  /// Saved state is incomplete, altered, or from another model. Nothing has
  /// changed.
  kCorruptCheckpoint,
  /// Gradients are not finite at any loss scale. Parameters and states are
  /// those of the last good step. A sync of an outer loop also throws this if
  /// parameters are not finite; then load a checkpoint.
  kNonFinite,
};

/// Returns the code's name without the k, for example "InvalidArgument".
[[nodiscard]] const char* to_string(ErrorCode code) noexcept;

/// The exception that this library throws, besides std::bad_alloc. With
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
