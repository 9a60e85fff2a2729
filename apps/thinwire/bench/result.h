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

/// How a row is measured; rows of one rank ignore some.
struct Settings {
  std::size_t elements = 0;
  int threads = 1;
  int rounds = 1;
  /// Speed of the link over which each rank sends. If it is 0 (unknown), the
  /// limit is a plain all-to-all of as many bytes, measured in the same rounds.
  double link_gbps = 0;
};

/// One measured row.
struct Result {
  std::string name;
  std::size_t elements = 0;
  int threads = 1;
  bool prefetch = false;  ///< Whether the kernels prefetched.
  double seconds = 0;     ///< Median over rounds.
  double bytes_per_element = 0;
  std::string_view limit;  ///< The limit that `of_limit` refers to.
  double of_limit = 0;     ///< 1 if as fast as the limit.
  std::optional<double> of_read_limit{};
  /// Time over that of Limit::kTwice; empty in rows with another limit.
  std::optional<double> double_passes{};
  /// Speed relative to the same row with the other prefetch setting: 2 is twice
  /// as fast. Empty in other rows.
  std::optional<double> of_other_prefetch{};

  /// Figures of rows that exchange with other ranks.
  struct Wire {
    int ranks = 1;
    std::uint64_t bytes_sent = 0;  ///< Per time, of the rank that sends most.
    double limit_ratio = 0;        ///< Time over the wire limit's; 1 at best.
  };
  std::optional<Wire> wire{};
};

/// The machine on which results were measured.
struct Machine {
  std::string processor;
  std::string prefetch;  ///< The setting and its source, in words.
};

/// Returns this machine, as the kernels see it.
[[nodiscard]] Machine this_machine();

/// Writes results as a table below a line about the machine, or as one JSON
/// object per line as soon as each is known.
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
