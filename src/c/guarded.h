// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>

#include "core/require.h"
#include "thinwire/core/error.h"
#include "thinwire/thinwire.h"

namespace thinwire::c {

/// Keeps the message for thinwire_last_error() of this thread. Never throws.
void remember(const char* message) noexcept;
[[nodiscard]] thinwire_status status_of(ErrorCode code) noexcept;

/// Throws Error(kInvalidArgument) if a required pointer is null.
inline void require_pointer(const void* pointer, const char* name) {
  require(pointer != nullptr, name, "not NULL", "NULL");
}

/// Runs body() and returns its status. No exception leaves this function.
template <class Body>
thinwire_status guarded(Body&& body) noexcept {
  try {
    body();
    return THINWIRE_OK;
  } catch (const Error& error) {
    remember(error.what());
    return status_of(error.code());
  } catch (const std::bad_alloc&) {
    remember("out of memory");
    return THINWIRE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    remember(error.what());
  } catch (...) {
    remember("an unknown exception");
  }
  return THINWIRE_INTERNAL;
}

}  // namespace thinwire::c
