// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "communicator.h"
#include "core/require.h"
#include "support/arrays.h"
#include "support/errors.h"
#include "support/gil.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

[[noreturn]] void fail(std::string_view operation, const std::string& text) {
  throw Error(ErrorCode::kCommFailure, std::string(operation) + ": " + text);
}

double seconds_until(std::chrono::steady_clock::time_point deadline) {
  const std::chrono::duration<double> left =
      deadline - std::chrono::steady_clock::now();
  return std::max(0.0, left.count());
}

// Has one (peer, memoryview) per message. The views are released at the end, so
// that later uses raise an error instead of reading freed memory.
class Messages {
 public:
  ~Messages() {
    for (const nb::handle message : list_) {
      const auto done = nb::steal(PyObject_CallMethod(
          nb::object(message[1]).ptr(), "release", nullptr));
      if (!done.is_valid()) PyErr_Clear();  // exported elsewhere
    }
  }
  void add(int peer, const void* data, std::size_t bytes) {
    list_.append(nb::make_tuple(peer, memoryview_of(data, bytes)));
  }
  [[nodiscard]] const nb::list& list() const noexcept { return list_; }

 private:
  nb::list list_;
};

class PythonTransport final : public comm::Transport {
 public:
  explicit PythonTransport(nb::object object)
      : name_(nb::cast<std::string>(object.attr("name"))),
        rank_(nb::cast<int>(object.attr("rank"))),
        size_(nb::cast<int>(object.attr("size"))),
        object_(std::move(object)) {
    require(rank_ >= 0 && rank_ < size_, "transport: rank", "in [0, size)",
            fmt::format("rank {} of {}", rank_, size_));
  }

  [[nodiscard]] std::string_view name() const noexcept override {
    return name_;
  }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return size_; }

  void exchange(std::span<const comm::SendMessage> sends,
                std::span<const comm::RecvMessage> receives,
                const comm::Operation& operation) override {
    call(operation, [&] {
      Messages sent;
      Messages received;
      for (const auto& message : sends)
        sent.add(message.peer, message.data, message.bytes);
      for (const auto& message : receives)
        received.add(message.peer, message.data, message.bytes);
      static_cast<void>(
          call_python(object_.get().attr("exchange"),
                      nb::make_tuple(sent.list(), received.list(),
                                     name_of(operation), operation.sequence,
                                     seconds_until(operation.deadline))));
    });
  }

  std::unique_ptr<comm::Transport> split(
      int color, int key, const comm::Operation& operation) override {
    std::unique_ptr<comm::Transport> part;
    call(operation, [&] {
      nb::object made = call_python(
          object_.get().attr("split"),
          nb::make_tuple(color, key, name_of(operation), operation.sequence,
                         seconds_until(operation.deadline)));
      if (!made.is_none()) part = make_transport(std::move(made));
    });
    return part;
  }

  void give_up(std::string_view reason) noexcept override {
    if (gave_up_.exchange(true)) return;
    const Gil gil;
    if (!gil) return;
    try {
      static_cast<void>(
          call_python(object_.get().attr("give_up"),
                      nb::make_tuple(nb::str(reason.data(), reason.size()))));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("Transport.give_up");
    }
  }

 private:
  static nb::str name_of(const comm::Operation& operation) {
    return nb::str(operation.name.data(), operation.name.size());
  }

  // Called without the GIL. A Python exception fails the group, because it has
  // no caller in this thread.
  template <class Body>
  void call(const comm::Operation& operation, Body&& body) {
    if (gave_up_) fail(operation.name, "this rank gave up");
    if (const char* reason = comm::interrupted()) fail(operation.name, reason);
    const Gil gil;
    if (!gil) fail(operation.name, "the Python interpreter is ending");
    std::string text;
    try {
      body();
      return;
    } catch (nb::python_error& error) {
      text = text_of(error);
    } catch (const nb::cast_error&) {
      text = "split() of the transport returned what is no transport";
    }
    fail(operation.name, text);
  }

  const std::string name_;
  const int rank_;
  const int size_;
  std::atomic<bool> gave_up_ = false;
  Reference object_;
};

}  // namespace

std::unique_ptr<comm::Transport> make_transport(nb::object object) {
  return std::make_unique<PythonTransport>(std::move(object));
}

}  // namespace thinwire::python
