// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

/// The caller's description of one parameter.
struct ParameterSpec {
  std::string name;                  ///< Unique, not empty, one line.
  std::vector<std::size_t> shape{};  ///< Empty for a scalar; may contain 0.
  std::size_t group = 0;             ///< Index into an optimizer's groups.
};

/// One parameter and its place in the flat array.
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

/// Places of a model's parameters in one flat array, in the given order and
/// without gaps. Gradients and optimizer states use the same offsets.
/// Immutable.
class ParameterLayout {
 public:
  ParameterLayout() = default;

  /// Returns the layout of `specs`. If `num_groups` > 0, it is the number of
  /// groups, some of which may have no parameters. If it is 0, the groups are
  /// those that the parameters name, without gaps. Throws
  /// Error(kInvalidArgument) for an empty, repeated or multi-line name, and for
  /// a total that does not fit std::size_t. Throws it also for group numbers
  /// with gaps or not below a `num_groups` > 0.
  [[nodiscard]] static ParameterLayout of(std::vector<ParameterSpec> specs,
                                          std::size_t num_groups = 0);

  [[nodiscard]] std::span<const Parameter> parameters() const noexcept {
    return parameters_;
  }
  /// Returns the number of elements of the flat array.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t num_groups() const noexcept { return num_groups_; }

  /// Returns the parameter of this name. Throws Error(kInvalidArgument) with
  /// the nearest known name.
  [[nodiscard]] const Parameter& parameter(std::string_view name) const;
  /// Returns the parameter that holds element `index`; index < size().
  [[nodiscard]] const Parameter& parameter_at(std::size_t index) const;

  /// Returns one line per parameter ("h.0.w 768x3072 group 0"). hash() covers
  /// this text, and ranks whose hashes differ compare it.
  [[nodiscard]] std::string describe() const;
  /// Returns the XXH3-64 of describe().
  [[nodiscard]] std::uint64_t hash() const;

 private:
  std::vector<Parameter> parameters_;
  std::size_t size_ = 0;
  std::size_t num_groups_ = 0;
};

}  // namespace thinwire
