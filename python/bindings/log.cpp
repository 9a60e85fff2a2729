// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/log.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace thinwire::python {
namespace {

// level, text
using Line = std::pair<std::string, std::string>;

// Keeps lines until somebody takes them. Any thread may call a sink, which must
// not wait for another thread. So it cannot take the GIL.
class Lines {
 public:
  void add(LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == kMost) {
      lines_.pop_front();
      ++dropped_;
    }
    lines_.emplace_back(to_string(level), text);
  }

  std::vector<Line> take() {
    const std::lock_guard lock(mutex_);
    std::vector<Line> all;
    if (dropped_ > 0)
      all.emplace_back(
          to_string(LogLevel::kWarning),
          std::to_string(dropped_) + " earlier lines of the log were dropped");
    all.insert(all.end(), lines_.begin(), lines_.end());
    lines_.clear();
    dropped_ = 0;
    return all;
  }

 private:
  static constexpr std::size_t kMost = 1000;

  std::mutex mutex_;
  std::deque<Line> lines_;
  std::size_t dropped_ = 0;
};

}  // namespace

void bind_log(nb::module_& module) {
  // Never freed, because threads may log until the process has ended.
  auto* const lines = new Lines;
  set_log_sink([lines](LogLevel level, std::string_view text) {
    lines->add(level, text);
  });
  module.def("take_log", [lines] { return lines->take(); });
}

}  // namespace thinwire::python
