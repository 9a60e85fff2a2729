// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"

namespace thinwire::python {

/// Lets interpreter_runs() detect the end of the interpreter from now on. The
/// end begins when atexit runs the functions that were registered before this
/// module was imported.
void watch_exit();
/// Returns false if nobody may take the GIL any more. In that case objects
/// whose destruction needs the GIL, directly or in another thread, are not
/// destroyed.
[[nodiscard]] bool interpreter_runs() noexcept;

/// Releases the GIL, and takes it back at the end of its scope. If another
/// thread ends the interpreter meanwhile, this thread sleeps for ever.
/// Otherwise Python up to 3.13 would unwind it through destructors, which ends
/// the process.
class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Takes the GIL in a thread that may not hold it. Does not take it if the
/// interpreter is ending, because Python would end this thread.
class Gil {
 public:
  Gil() noexcept;
  /// Returns whether this object holds the GIL.
  explicit operator bool() const noexcept { return held_.has_value(); }

 private:
  std::optional<nb::gil_scoped_acquire> held_;
};

/// Calls callable(*arguments) with the GIL, in a thread of the library. Does
/// not return if the interpreter ends meanwhile.
[[nodiscard]] nb::object call_python(const nb::object& callable,
                                     const nb::tuple& arguments);

/// A reference to a Python object that any thread may release, with or without
/// the GIL.
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

  /// Call only with the GIL.
  [[nodiscard]] const nb::object& get() const noexcept { return object_; }

 private:
  void drop() noexcept;

  nb::object object_;
};

/// Calls body(*object) without the GIL. If another thread closes the handle
/// meanwhile, the object is destroyed here. The GIL is taken back afterwards,
/// because the object's threads may need it to end.
template <class T, class Body>
auto without_gil(std::shared_ptr<T> object, Body&& body) {
  const WithoutGil released;
  const std::shared_ptr<T> held = std::move(object);
  return body(*held);
}

}  // namespace thinwire::python
