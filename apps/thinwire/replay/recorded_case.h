// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace thinwire::replay {

/// A case that this program cannot replay; it counts as failed.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A case whose files are inconsistent.
class BrokenCase : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One recorded array: raw little-endian values and their shape. The first axis
/// may have one row per rank, or one for all.
struct RecordedArray {
  std::string name;
  std::vector<std::size_t> shape;
  std::vector<std::byte> bytes;

  /// Return row (i, j, ...) of the axes before the last one, as floats or
  /// bytes.
  [[nodiscard]] std::span<const float> floats(
      std::initializer_list<std::size_t> indices) const;
  [[nodiscard]] std::span<const std::uint8_t> raw(
      std::initializer_list<std::size_t> indices) const;
  /// Returns `rank`, or 0 if all ranks share one row.
  [[nodiscard]] std::size_t row_of(int rank) const;

 private:
  [[nodiscard]] std::size_t first_element(
      std::initializer_list<std::size_t> indices) const;
};

/// A folder with meta.json and the arrays that it lists, except native.*.
class RecordedCase {
 public:
  /// Throws BrokenCase naming the file that is missing or has the wrong size.
  explicit RecordedCase(const std::filesystem::path& folder);

  [[nodiscard]] const nlohmann::json& meta() const noexcept { return meta_; }
  [[nodiscard]] int world() const;
  [[nodiscard]] bool has(const std::string& file) const;
  [[nodiscard]] const RecordedArray& array(const std::string& file) const;
  /// Returns every array except the inputs.
  [[nodiscard]] std::set<std::string> outputs() const;

 private:
  nlohmann::json meta_;
  std::map<std::string, RecordedArray> arrays_;
};

}  // namespace thinwire::replay
