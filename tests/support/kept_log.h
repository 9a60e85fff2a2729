// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/log.h"

namespace thinwire::test {

/// Keeps what is logged during its lifetime.
class KeptLog {
 public:
  KeptLog() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~KeptLog() { set_log_sink({}); }
  KeptLog(const KeptLog&) = delete;
  KeptLog& operator=(const KeptLog&) = delete;

  /// Returns the lines that contain `part`.
  [[nodiscard]] std::vector<std::string> with(std::string_view part) const {
    std::vector<std::string> found;
    std::copy_if(lines_.begin(), lines_.end(), std::back_inserter(found),
                 [&](const std::string& line) {
                   return line.find(part) != std::string::npos;
                 });
    return found;
  }
  [[nodiscard]] std::size_t count(std::string_view part) const {
    return with(part).size();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace thinwire::test
