// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

/// What a caller says of one parameter.
struct ParameterSpec {
  std::string name;                  ///< Unique, not empty, one line.
  std::vector<std::size_t> shape{};  ///< Empty: a scalar. A 0 makes it empty.
  std::size_t group = 0;             ///< Index into an optimizer's groups.
};

/// One parameter in its place.
struct Parameter {
  std::string name;
  std::vector<std::size_t> shape;
  std::size_t group = 0;
  std::size_t offset = 0;  ///< First element in the flat array.
  std::size_t size = 0;    ///< Number of elements.
};

/// Elements [offset, offset + size) of a flat array.
struct Range {
  std::size_t offset = 0;
  std::size_t size = 0;
  [[nodiscard]] std::size_t end() const noexcept { return offset + size; }
  bool operator==(const Range&) const = default;
};

/// How a model's parameters lie in one flat array: in the order given, without
/// gaps. Gradients and optimizer states use the same offsets. Immutable.
class ParameterLayout {
 public:
  ParameterLayout() = default;

  /// Groups there are `num_groups`, although these parameters may leave some
  /// out; 0: those that they name, without gaps. Throws
  /// Error(kInvalidArgument) for an empty, repeated or multi-line name, for a
  /// total that does not fit std::size_t, and for group numbers that leave one
  /// out or are not below a `num_groups` > 0.
  [[nodiscard]] static ParameterLayout of(std::vector<ParameterSpec> specs,
                                          std::size_t num_groups = 0);

  [[nodiscard]] std::span<const Parameter> parameters() const noexcept {
    return parameters_;
  }
  /// Elements of the flat array.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t num_groups() const noexcept { return num_groups_; }

  /// Throws Error(kInvalidArgument) naming the nearest known name.
  [[nodiscard]] const Parameter& parameter(std::string_view name) const;
  /// The parameter that holds element `index`; index < size().
  [[nodiscard]] const Parameter& parameter_at(std::size_t index) const;

  /// One line per parameter ("h.0.w 768x3072 group 0"): what the hash covers
  /// and what two ranks that disagree compare.
  [[nodiscard]] std::string describe() const;
  /// XXH3-64 of describe().
  [[nodiscard]] std::uint64_t hash() const;

 private:
  std::vector<Parameter> parameters_;
  std::size_t size_ = 0;
  std::size_t num_groups_ = 0;
};

}  // namespace thinwire
