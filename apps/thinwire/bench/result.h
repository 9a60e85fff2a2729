// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace thinwire::apps::bench {

/// One measured row.
struct Result {
  std::string name;
  std::size_t elements = 0;
  int threads = 1;
  bool prefetch = false;  ///< What the kernels did.
  double seconds = 0;     ///< Median over rounds.
  double bytes_per_element = 0;
  std::string_view limit;  ///< What of_limit compares with.
  double of_limit = 0;     ///< 1: as fast as the limit.
  std::optional<double> of_read_limit{};
  /// Of rows by prefetch: speed over that of the other one, 2: twice as fast.
  std::optional<double> of_other_prefetch{};

  /// Of rows that talk to other ranks.
  struct Wire {
    int ranks = 1;
    std::uint64_t bytes_sent = 0;  ///< By the rank that sends most, each time.
    double limit_ratio = 0;        ///< Time over the wire limit's; 1 at best.
  };
  std::optional<Wire> wire{};
};

/// What every result was measured on.
struct Machine {
  std::string processor;
  std::string prefetch;  ///< What was chosen and by what, in words.
};

/// This one, as the kernels see it.
[[nodiscard]] Machine this_machine();

/// Writes results as a table below a line about the machine, or as one JSON
/// object per line, each when it is known.
class Printer {
 public:
  Printer(std::ostream& out, bool json, std::size_t longest_name,
          Machine machine)
      : out_(out),
        json_(json),
        name_width_(longest_name),
        machine_(std::move(machine)) {}

  void print(const Result& result);

 private:
  void print_json(const Result& result);
  void print_header(const Result& result);
  void print_line(const Result& result);

  std::ostream& out_;
  bool json_;
  std::size_t name_width_;
  Machine machine_;
  bool has_header_ = false;
};

}  // namespace thinwire::apps::bench
