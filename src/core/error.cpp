// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/error.h"

namespace thinwire {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kFailedPrecondition:
      return "FailedPrecondition";
    case ErrorCode::kUnavailable:
      return "Unavailable";
    case ErrorCode::kCommFailure:
      return "CommFailure";
    case ErrorCode::kDeviceFailure:
      return "DeviceFailure";
    case ErrorCode::kCorruptCheckpoint:
      return "CorruptCheckpoint";
    case ErrorCode::kNonFinite:
      return "NonFinite";
  }
  return "unknown";
}

}  // namespace thinwire
