// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "apps/thinwire/checkpoint/opened.h"

namespace thinwire::apps::checkpoint_tool {

/// Prints and counts differences.
class Differences {
 public:
  explicit Differences(bool json) : json_(json) {}

  /// `what` is, for example, "exp_avg of h.0.w"; `first` is counted in its
  /// elements.
  void compare(const std::string& what, const Values& a, const Values& b);
  void compare(const std::string& what, const std::string& a,
               const std::string& b);
  /// Counts a difference that has no single values to compare.
  void note(const std::string& what, const std::string& difference);
  /// Names something that is not compared, and counts no difference.
  void leave_out(const std::string& what, const std::string& why);

  [[nodiscard]] bool none() const noexcept { return found_ == 0; }
  /// Returns a text like "3 of 120".
  [[nodiscard]] std::string count() const;
  void conclude() const;

 private:
  bool json_;
  std::uint64_t compared_ = 0;
  std::uint64_t found_ = 0;
};

}  // namespace thinwire::apps::checkpoint_tool
