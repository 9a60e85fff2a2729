// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "core/require.h"
#include "support/gil.h"

namespace thinwire::python {

/// Python's reference to an object of the library. It can be closed, and does
/// not work in children of fork(), which lack the object's threads.
template <class T>
class Handle {
 public:
  /// `what` is a literal, for messages.
  Handle(const char* what, std::shared_ptr<T> object)
      : what_(what), object_(std::move(object)), process_(getpid()) {}
  ~Handle() { close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  /// Throws Error(kFailedPrecondition) after close(), and in another process.
  [[nodiscard]] std::shared_ptr<T> get() const {
    if (!object_) refuse(fmt::format("this {} is closed", what_));
    if (getpid() != process_)
      refuse(
          fmt::format("this {} belongs to process {}, which has forked: make "
                      "another one here",
                      what_, process_));
    return object_;
  }
  /// Returns a reference for immediate use. Throws like get().
  [[nodiscard]] T& look() const { return *get(); }
  [[nodiscard]] bool is_closed() const noexcept { return !object_; }

  /// Closes the handle. Idempotent. The object is destroyed without the GIL, as
  /// soon as nobody else uses it.
  void close() noexcept {
    std::shared_ptr<T> object = std::move(object_);
    if (!object) return;
    if (getpid() != process_ || !interpreter_runs()) {
      // Destroying the object would wait for threads that are not in this
      // process, or that cannot end without the GIL.
      static_cast<void>(new std::shared_ptr<T>(std::move(object)));
      return;
    }
    const WithoutGil released;
    object.reset();
  }

 private:
  const char* what_;
  std::shared_ptr<T> object_;
  pid_t process_;
};

}  // namespace thinwire::python
