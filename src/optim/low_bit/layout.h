// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim/step_pieces.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/optim/parameter_groups.h"

namespace thinwire::optim {

/// Compression of one group of parameters.
struct LowBitGroup {
  std::vector<float> exp_avg_mask;  ///< One value per element, or empty.
  bool stays_exact = false;
};

/// The compressed parameters and their division into blocks.
struct LowBitLayout {
  /// Cuts blocks by `block_options`, unless blocks are given.
  LowBitLayout(const ParameterLayout& layout,
               std::span<const LowBitGroup> groups,
               const exchange::BlockOptions& block_options,
               std::optional<exchange::BlockLayout> given);

  std::vector<GroupRange> all;         ///< The whole layout.
  std::vector<GroupRange> compressed;  ///< Groups that are compressed.
  std::vector<Range> exact;            ///< The other groups: non_freeze.
  /// Compressed parameters. Each is a unit, so that no scale covers two of
  /// them.
  std::vector<Range> units;
  exchange::BlockLayout blocks;
  std::vector<std::size_t> block_group;      ///< Per block.
  std::vector<std::size_t> block_parameter;  ///< Per block, its index.
};

/// The caller's masks (exp_avg_mask), which select elements whose momentum is
/// always 0. They may change during training. New masks take effect after the
/// scalar exchange of a step has shown that all ranks have set the same.
class Masks {
 public:
  /// Largest fingerprint.
  static constexpr std::uint32_t kBits = (std::uint32_t{1} << 29) - 1;

  Masks(const ParameterLayout& layout, std::span<const LowBitGroup> groups);

  /// Returns the masks in force, with one value per element; empty if all are
  /// 1.
  [[nodiscard]] std::span<const float> values() const { return values_; }
  [[nodiscard]] bool leaves_out(std::size_t element) const {
    return !values_.empty() && values_[element] == 0;
  }

  /// Sets a group's mask, which takes effect in the next follow(). Throws
  /// Error(kInvalidArgument).
  void set(const ParameterLayout& layout, std::size_t group,
           std::span<const float> mask);
  /// Returns whether masks have been set since the last follow().
  [[nodiscard]] bool are_waiting() const { return next_.has_value(); }
  void follow();
  /// Returns a number that differs if the masks differ, including waiting ones;
  /// 0 if all are 1.
  [[nodiscard]] std::uint32_t fingerprint() const { return fingerprint_; }

 private:
  std::vector<float> values_;
  std::optional<std::vector<float>> next_;
  std::uint32_t fingerprint_ = 0;
};

/// Groups of an optimizer that has masks.
class MaskedGroups : public JoinedGroups {
 public:
  /// `layout` and `masks` must outlive this object.
  MaskedGroups(const ParameterLayout& layout, Masks& masks, Parts parts)
      : JoinedGroups(std::move(parts)), layout_(layout), masks_(masks) {}

  void set_exp_avg_mask(std::size_t group,
                        std::span<const float> mask) override {
    masks_.set(layout_, group, mask);
  }

 private:
  const ParameterLayout& layout_;
  Masks& masks_;
};

/// Elements, in ascending order, that new masks exclude or include again.
struct MaskChange {
  std::vector<std::size_t> excluded{};
  std::vector<std::size_t> included{};

  [[nodiscard]] bool empty() const {
    return excluded.empty() && included.empty();
  }
};

/// Adds notes on a change of masks by a load, if any.
void note_change(const MaskChange& change, std::vector<std::string>& notes);

}  // namespace thinwire::optim
