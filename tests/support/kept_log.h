// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/log.h"

namespace thinwire::test {

/// Keeps the lines that are logged during its lifetime, of all levels or of
/// one.
class KeptLog {
 public:
  explicit KeptLog(std::optional<LogLevel> only = {}) {
    set_log_sink([this, only](LogLevel level, std::string_view line) {
      const std::lock_guard lock(mutex_);
      if (level == only.value_or(level)) lines_.emplace_back(line);
    });
  }
  ~KeptLog() { set_log_sink({}); }
  KeptLog(const KeptLog&) = delete;
  KeptLog& operator=(const KeptLog&) = delete;

  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
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
