// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"

namespace thinwire::python {

/// From now on interpreter_runs() sees the end of the interpreter when atexit
/// begins to run what was registered before this module was imported.
void watch_exit();
/// False: nobody may ask for the GIL any more, and what needs it to end, or may
/// wait for a thread that does, is left as it is.
[[nodiscard]] bool interpreter_runs() noexcept;

/// Gives the GIL up and takes it back at the end of its scope. A thread that
/// wants it back while another one ends the interpreter sleeps for ever: up to
/// 3.13 Python would unwind it through destructors, which ends the process.
class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// The GIL, for a thread that may not have it: unless the interpreter is
/// ending, where Python would end this thread instead.
class Gil {
 public:
  Gil() noexcept;
  /// Whether it is held.
  explicit operator bool() const noexcept { return held_.has_value(); }

 private:
  std::optional<nb::gil_scoped_acquire> held_;
};

/// With the GIL: callable(*arguments), for a thread of the library's. Does not
/// return where the interpreter ends meanwhile.
[[nodiscard]] nb::object call_python(const nb::object& callable,
                                     const nb::tuple& arguments);

/// A reference to a Python object that any thread may drop, with the GIL or
/// without.
class Reference {
 public:
  Reference() = default;
  explicit Reference(nb::object object) : object_(std::move(object)) {}
  ~Reference() { drop(); }
  Reference(Reference&& other) noexcept = default;
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  /// With the GIL only.
  [[nodiscard]] const nb::object& get() const noexcept { return object_; }

 private:
  void drop() noexcept;

  nb::object object_;
};

/// body(*object) without the GIL. Where another thread has closed the object's
/// handle meanwhile, it dies here, before the GIL comes back: its threads may
/// need that to end.
template <class T, class Body>
auto without_gil(std::shared_ptr<T> object, Body&& body) {
  const WithoutGil released;
  const std::shared_ptr<T> held = std::move(object);
  return body(*held);
}

}  // namespace thinwire::python
