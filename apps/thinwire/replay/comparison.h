// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace thinwire::replay {

/// The step and the name of a compared value.
struct Place {
  std::size_t step = 0;
  std::string what;  ///< For example "exp_avg_sq".
};

/// One rank's comparison of computed and recorded values. Keeps the first
/// difference and continues, so that the ranks stay together.
class Comparison {
 public:
  /// `tensor_sizes` divide a flat array in messages.
  Comparison(int rank, std::vector<std::size_t> tensor_sizes)
      : rank_(rank), tensor_sizes_(std::move(tensor_sizes)) {}

  /// Compares bits, except that any NaN equals any NaN.
  void floats(const Place& place, std::span<const float> got,
              std::span<const float> want);
  void bytes(const Place& place, std::span<const std::uint8_t> got,
             std::span<const std::uint8_t> want);
  /// Compares anything with a text form: "true", "[1, 2]", "0.5".
  void text(const Place& place, const std::string& got,
            const std::string& want);

  /// Records that the array with this file name has been compared.
  void covered(const std::string& file) { covered_.insert(file); }

  [[nodiscard]] const std::set<std::string>& covered() const noexcept {
    return covered_;
  }
  [[nodiscard]] std::size_t compared_bytes() const noexcept { return bytes_; }
  /// Returns, for example, "step 7, exp_avg, tensor 2, element 31, rank 1: got
  /// ... want ...".
  [[nodiscard]] const std::optional<std::string>& difference() const noexcept {
    return difference_;
  }
  [[nodiscard]] std::size_t difference_step() const noexcept { return step_; }

 private:
  void differ(const Place& place, const std::string& where,
              const std::string& got, const std::string& want);
  [[nodiscard]] std::string element(std::size_t index, std::size_t size) const;

  int rank_;
  std::vector<std::size_t> tensor_sizes_;
  std::set<std::string> covered_;
  std::size_t bytes_ = 0;
  std::optional<std::string> difference_;
  std::size_t step_ = 0;
};

}  // namespace thinwire::replay
