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

/// A case this program cannot replay, and why; it counts as failed.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A case whose files do not hold together.
class BrokenCase : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One recorded array: raw little-endian values and their shape. Rows along the
/// first axis may be one per rank, or one for all.
struct RecordedArray {
  std::string name;
  std::vector<std::size_t> shape;
  std::vector<std::byte> bytes;

  /// Row (i, j, ...) of the axes before the last one, as floats or bytes.
  [[nodiscard]] std::span<const float> floats(
      std::initializer_list<std::size_t> indices) const;
  [[nodiscard]] std::span<const std::uint8_t> raw(
      std::initializer_list<std::size_t> indices) const;
  /// `rank`, or 0 where all ranks share one row.
  [[nodiscard]] std::size_t row_of(int rank) const;

 private:
  [[nodiscard]] std::size_t first_element(
      std::initializer_list<std::size_t> indices) const;
};

/// A folder with meta.json and the arrays it lists, native.* left out.
class RecordedCase {
 public:
  /// Throws BrokenCase naming the file that is missing or of the wrong size.
  explicit RecordedCase(const std::filesystem::path& folder);

  [[nodiscard]] const nlohmann::json& meta() const noexcept { return meta_; }
  [[nodiscard]] int world() const;
  [[nodiscard]] bool has(const std::string& file) const;
  [[nodiscard]] const RecordedArray& array(const std::string& file) const;
  /// Every array but the inputs.
  [[nodiscard]] std::set<std::string> outputs() const;

 private:
  nlohmann::json meta_;
  std::map<std::string, RecordedArray> arrays_;
};

}  // namespace thinwire::replay
