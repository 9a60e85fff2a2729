// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "optim/low_bit/layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/optim/state.h"

/// Denominators of a low-bit optimizer whose variance is frozen.
namespace thinwire::optim {

/// Participation of an element in compressed steps.
enum Participation : std::uint8_t {
  kOut = 0,    ///< Excluded as long as the caller masks it.
  kTakesPart,  ///< Live.
  kLate,       ///< Inactive: it had no gradient when v was frozen.
  kUnfit,      ///< Excluded permanently, because its variance overflowed.
};
/// One Participation per element of the layout; empty if all elements take
/// part.
using Participations = std::span<const std::uint8_t>;
[[nodiscard]] inline Participations participations_of(Participations all,
                                                      Range range) {
  return all.empty() ? all : all.subspan(range.offset, range.size);
}

/// An outlier, whose denominator is far above those around it, so that its
/// momentum would dominate its block's scale. Its gradient and its moments are
/// therefore multiplied by `factor`, which does not change momentum over
/// denominator.
struct HeavyElement {
  std::size_t index = 0;
  float factor = 1;

  bool operator==(const HeavyElement&) const = default;
};

/// Returns the outliers in `range`. `heavy` is sorted by index.
[[nodiscard]] inline std::span<const HeavyElement> heavy_in(
    std::span<const HeavyElement> heavy, const Range& range) {
  const auto from = [&](std::size_t index) {
    return std::ranges::lower_bound(heavy, index, {}, &HeavyElement::index);
  };
  return {from(range.offset), from(range.end())};
}

/// Returns element n / 2 of the n values in sorted order, or nothing if n is 0.
/// Reorders the values.
[[nodiscard]] std::optional<float> median_of(std::vector<float>& values);
/// Returns the ranges of the blocks.
[[nodiscard]] std::vector<Range> ranges_of_blocks(const LowBitLayout& parts);
/// Throws Error(kCorruptCheckpoint) unless the array of a state has one value
/// for each of these blocks.
void require_blocks(const StateDict& state, const char* name,
                    const std::vector<Range>& blocks, std::size_t num_elements);

/// Denominators of the blocks, limited so that dividing by them is safe. With
/// the median M of a block's live elements and tau = 10 M:
///  cap     d = min(d, tau); elements above are outliers
///  floor   d = max(d, F), F = fraction * RMS of the live min(d, tau)
///  inactive elements start with d = max(M, F)
/// Without the floor, elements whose gradient is rounding noise would get
/// +-scale divided by almost nothing. Without the cap, one outlier would raise
/// the floor and the scale of a thousand neighbours. The papers have neither.
class BlockDenominators {
 public:
  /// Caps and floors `d`, which holds sqrt(v) + eps of every compressed
  /// element, and finds medians, floors and outliers. A block without live
  /// elements gets the median of its parameter or, if that has none either, of
  /// the model, or 1.
  void fit(std::span<float> d, Participations participation,
           const LowBitLayout& parts, double fraction, ThreadPool& pool);
  /// Prepares `num_blocks` blocks for fit_block().
  explicit BlockDenominators(std::size_t num_blocks)
      : medians_(num_blocks), floors_(num_blocks) {}
  BlockDenominators() = default;
  /// Fits a single block, elements `at`, and returns its outliers. Returns
  /// nothing and changes nothing if the block has no live element.
  [[nodiscard]] std::optional<std::vector<HeavyElement>> fit_block(
      std::size_t block, Range at, std::span<float> d,
      Participations participation, double fraction);
  /// Sets the values of a block that another rank has fitted or that cannot be
  /// fitted.
  void set_block(std::size_t block, float median, float floor) {
    medians_[block] = median;
    floors_[block] = floor;
  }
  void set_heavy(std::vector<HeavyElement> by_index) {
    heavy_ = std::move(by_index);
  }
  /// Removes `elements`, in ascending order, from the outliers.
  void forget_heavy(std::span<const std::size_t> elements);
  /// Returns the first denominator of an inactive element of the block.
  [[nodiscard]] float of_late(std::size_t block) const {
    return std::max(medians_[block], floors_[block]);
  }

  [[nodiscard]] float median(std::size_t block) const {
    return medians_[block];
  }
  [[nodiscard]] float floor(std::size_t block) const { return floors_[block]; }
  /// Returns the outliers, sorted by index.
  [[nodiscard]] std::span<const HeavyElement> heavy() const { return heavy_; }
  [[nodiscard]] bool empty() const { return medians_.empty(); }

  void add_to(State& state, const LowBitLayout& parts) const;
  /// Takes denominators from a state; they are empty if it has none. Throws
  /// Error(kCorruptCheckpoint), also if its blocks differ from `parts`.
  [[nodiscard]] static BlockDenominators load(const StateDict& state,
                                              const LowBitLayout& parts,
                                              std::size_t num_elements);

 private:
  static constexpr float kCapOfMedian = 10;

  /// Returns tau, the largest live denominator after fit().
  [[nodiscard]] float cap(std::size_t block) const {
    return kCapOfMedian * medians_[block];
  }

  // Cuts off denominators above the cap.
  [[nodiscard]] std::vector<HeavyElement> cut_heavy(
      std::size_t block, Range at, std::span<float> d,
      Participations participation) const;
  // Computes the floor of a block whose median is known, and raises `d` to it.
  void raise_to_floor(std::size_t block, std::span<float> d,
                      Participations participation, double fraction);
  void find_medians(std::span<const float> d, Participations participation,
                    const LowBitLayout& parts, ThreadPool& pool);

  std::vector<float> medians_;  // per block
  std::vector<float> floors_;   // per block
  std::vector<HeavyElement> heavy_;
};

/// Takes the denominators of all elements from a saved state. Throws
/// Error(kCorruptCheckpoint) unless those of compressed parameters are above 0.
/// Denominators of exact groups are unused and may be 0.
[[nodiscard]] Buffer take_denominators(StateDict& state,
                                       const LowBitLayout& parts,
                                       std::size_t num_elements);

/// Returns the participation that follows from variance and masks: elements
/// with `v` = 0 are inactive, and elements outside of `ranges` take part.
/// Returns an empty vector if all elements take part.
[[nodiscard]] std::vector<std::uint8_t> participations(
    std::span<const float> v, std::span<const GroupRange> ranges,
    std::span<const float> mask);
/// Returns the Participation of every element in a saved state, or an empty
/// vector if all take part. Throws Error(kCorruptCheckpoint).
[[nodiscard]] std::vector<std::uint8_t> saved_participation(
    const StateDict& state, std::size_t num_elements);
/// Marks elements without a finite denominator as unfit and returns them. If
/// there are none, an empty `participation` stays empty.
[[nodiscard]] std::vector<std::size_t> leave_out_nonfinite(
    std::span<const float> d, std::span<const GroupRange> ranges,
    std::vector<std::uint8_t>& participation);

}  // namespace thinwire::optim
