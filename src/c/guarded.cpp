// SPDX-License-Identifier: Apache-2.0
#include "c/guarded.h"

#include <string>

#include "thinwire/core/log.h"

namespace thinwire::c {
namespace {

thread_local std::string last_error;

}  // namespace

void remember(const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
}

thinwire_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return THINWIRE_INVALID_ARGUMENT;
    case ErrorCode::kFailedPrecondition:
      return THINWIRE_FAILED_PRECONDITION;
    case ErrorCode::kUnavailable:
      return THINWIRE_UNAVAILABLE;
    case ErrorCode::kCommFailure:
      return THINWIRE_COMM_FAILURE;
    case ErrorCode::kDeviceFailure:
      return THINWIRE_DEVICE_FAILURE;
    case ErrorCode::kCorruptCheckpoint:
      return THINWIRE_CORRUPT_CHECKPOINT;
    case ErrorCode::kNonFinite:
      return THINWIRE_NON_FINITE;
  }
  return THINWIRE_INTERNAL;
}

}  // namespace thinwire::c

namespace c = thinwire::c;

const char* thinwire_version(void) { return THINWIRE_VERSION; }

const char* thinwire_last_error(void) { return c::last_error.c_str(); }

thinwire_status thinwire_set_log(thinwire_log_function log, void* context) {
  return c::guarded([&] {
    if (log == nullptr) return thinwire::set_log_sink({});
    thinwire::set_log_sink(
        [log, context](thinwire::LogLevel level, std::string_view text) {
          log(context, std::string(thinwire::to_string(level)).c_str(),
              std::string(text).c_str());
        });
  });
}
