// SPDX-License-Identifier: Apache-2.0
#include "support/gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace thinwire::python {
namespace {

std::atomic<bool> is_exiting = false;
// The thread that ends the interpreter and continues to use the GIL. Set before
// is_exiting.
std::thread::id exiting_thread;
// Number of threads that found the interpreter running and wait for the GIL.
std::atomic<int> entering = 0;

// Waits until these threads have had the GIL, before the interpreter ends.
void begin_exit() {
  exiting_thread = std::this_thread::get_id();
  is_exiting = true;
  const nb::gil_scoped_release released;
  while (entering > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

void watch_exit() {
  // A forked child has none of these threads.
  pthread_atfork(nullptr, nullptr, [] { entering = 0; });
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function(&begin_exit));
}

bool interpreter_runs() noexcept {
  return !is_exiting && Py_IsInitialized() != 0;
}

WithoutGil::~WithoutGil() {
  ++entering;
  if (interpreter_runs() || std::this_thread::get_id() == exiting_thread) {
    PyEval_RestoreThread(state_);
    --entering;
    return;
  }
  --entering;
  for (;;) pause();
}

Gil::Gil() noexcept {
  ++entering;
  if (interpreter_runs()) held_.emplace();
  --entering;
}

nb::object call_python(const nb::object& callable, const nb::tuple& arguments) {
  PyObject* result = nullptr;
  try {
    result = PyObject_Call(callable.ptr(), arguments.ptr(), nullptr);
  } catch (...) {
    // If a thread takes the GIL back after the interpreter has ended, Python up
    // to 3.13 unwinds the thread. This would destroy Python objects in every
    // frame.
    for (;;) pause();
  }
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

void Reference::drop() noexcept {
  if (!object_.is_valid()) return;
  if (const Gil gil; gil)
    object_.reset();
  else
    static_cast<void>(object_.release());
}

}  // namespace thinwire::python
