// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "support/gil.h"
#include "thinwire/core/error.h"

namespace thinwire::python {

/// Python's reference to an object of the library. It can be closed, and is
/// refused in the children of fork(), which have none of its threads.
template <class T>
class Handle {
 public:
  /// `what` is a literal, for messages.
  Handle(const char* what, std::shared_ptr<T> object)
      : what_(what), object_(std::move(object)), process_(getpid()) {}
  ~Handle() { close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  /// Throws Error(kFailedPrecondition) once closed, and in another process.
  [[nodiscard]] std::shared_ptr<T> get() const {
    if (!object_)
      throw Error(ErrorCode::kFailedPrecondition,
                  std::string("this ") + what_ + " is closed");
    if (getpid() != process_)
      throw Error(ErrorCode::kFailedPrecondition,
                  std::string("this ") + what_ + " belongs to process " +
                      std::to_string(process_) +
                      ", which has forked: make another one here");
    return object_;
  }
  /// Returns a reference for a short look, under the same conditions.
  [[nodiscard]] T& look() const { return *get(); }
  [[nodiscard]] bool is_closed() const noexcept { return !object_; }

  /// Idempotent. The object is destroyed without the GIL, as soon as nobody
  /// else uses it.
  void close() noexcept {
    std::shared_ptr<T> object = std::move(object_);
    if (!object) return;
    if (getpid() != process_ || !interpreter_runs()) {
      // Destroying it would wait for threads that are not in this process, or
      // that cannot end without the GIL.
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
