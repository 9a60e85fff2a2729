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

/// Denominators of a low-bit optimizer while the variance is frozen.
namespace thinwire::optim {

/// How an element takes part in compressed steps.
enum Participation : std::uint8_t {
  kOut = 0,    ///< Not as long as the caller masks it.
  kTakesPart,  ///< It is live.
  kLate,       ///< Once it has a gradient; it had none when v was frozen.
  kUnfit,      ///< Never: its variance overflowed. kOut until version 0.7.
};
/// One Participation per element of the layout; empty: all take part.
using Participations = std::span<const std::uint8_t>;
[[nodiscard]] inline Participations participations_of(Participations all,
                                                      Range range) {
  return all.empty() ? all : all.subspan(range.offset, range.size);
}

/// An outlier element, whose denominator lies far above those around it. Its
/// momentum would set the scale of its block. So its gradients and its moments
/// are multiplied by `factor`, which leaves momentum over denominator as it
/// was.
struct HeavyElement {
  std::size_t index = 0;
  float factor = 1;

  bool operator==(const HeavyElement&) const = default;
};

/// Returns those of `heavy`, which are sorted by index, that lie in `range`.
[[nodiscard]] inline std::span<const HeavyElement> heavy_in(
    std::span<const HeavyElement> heavy, const Range& range) {
  const auto from = [&](std::size_t index) {
    return std::ranges::lower_bound(heavy, index, {}, &HeavyElement::index);
  };
  return {from(range.offset), from(range.end())};
}

/// Returns element n / 2 of the n sorted values, which it reorders; nothing if
/// there are none.
[[nodiscard]] std::optional<float> median_of(std::vector<float>& values);
/// Returns the ranges of the blocks.
[[nodiscard]] std::vector<Range> ranges_of_blocks(const LowBitLayout& parts);
/// Throws Error(kCorruptCheckpoint) unless an array of a state has one value
/// for each of these blocks.
void require_blocks(const StateDict& state, const char* name,
                    const std::vector<Range>& blocks, std::size_t num_elements);

/// The denominators of the blocks, made fit to be divided by. With M the median
/// of a block's live elements and tau = 10 M:
///
///   cap     d = min(d, tau); elements above are outliers
///   floor   d = max(d, F), F = fraction * RMS of the live min(d, tau)
///   inactive elements begin with d = max(M, F)
///
/// Without the floor, coordinates whose gradient is rounding noise get +-scale
/// divided by next to nothing. Without the cap, one outlier lifts the floor and
/// the scale of a thousand neighbours. This is a departure from the papers.
class BlockDenominators {
 public:
  /// Floors and caps `d`, which holds sqrt(v) + eps of every compressed
  /// element, and finds medians, floors and outlier elements. A block without a
  /// live element gets the median of its parameter. If that has none, it gets
  /// the median of the model, or 1.
  void fit(std::span<float> d, Participations participation,
           const LowBitLayout& parts, double fraction, ThreadPool& pool);
  /// Prepares so many blocks for fit_block().
  explicit BlockDenominators(std::size_t num_blocks)
      : medians_(num_blocks), floors_(num_blocks) {}
  BlockDenominators() = default;
  /// Fits one block, elements `at`, on its own, and returns its outlier
  /// elements. Does nothing and returns nothing if it has no live element.
  [[nodiscard]] std::optional<std::vector<HeavyElement>> fit_block(
      std::size_t block, Range at, std::span<float> d,
      Participations participation, double fraction);
  /// Sets a block that another rank has fitted, or that cannot be fitted.
  void set_block(std::size_t block, float median, float floor) {
    medians_[block] = median;
    floors_[block] = floor;
  }
  void set_heavy(std::vector<HeavyElement> by_index) {
    heavy_ = std::move(by_index);
  }
  /// Removes `elements`, ascending, from the outlier elements.
  void forget_heavy(std::span<const std::size_t> elements);
  /// Returns the first denominator of an inactive element of the block.
  [[nodiscard]] float of_late(std::size_t block) const {
    return std::max(medians_[block], floors_[block]);
  }

  [[nodiscard]] float median(std::size_t block) const {
    return medians_[block];
  }
  [[nodiscard]] float floor(std::size_t block) const { return floors_[block]; }
  /// Returns the outlier elements by index.
  [[nodiscard]] std::span<const HeavyElement> heavy() const { return heavy_; }
  [[nodiscard]] bool empty() const { return medians_.empty(); }

  void add_to(State& state, const LowBitLayout& parts) const;
  /// Returns empty denominators if the state has none. Throws
  /// Error(kCorruptCheckpoint), also if its blocks are not those of `parts`.
  [[nodiscard]] static BlockDenominators load(const StateDict& state,
                                              const LowBitLayout& parts,
                                              std::size_t num_elements);

 private:
  static constexpr float kCapOfMedian = 10;

  /// Returns tau, the largest live denominator that fit() leaves.
  [[nodiscard]] float cap(std::size_t block) const {
    return kCapOfMedian * medians_[block];
  }

  // Cuts off denominators above the cap.
  [[nodiscard]] std::vector<HeavyElement> cut_heavy(
      std::size_t block, Range at, std::span<float> d,
      Participations participation) const;
  // Forms the floor of a block that has its median, and raises `d` to it.
  void raise_to_floor(std::size_t block, std::span<float> d,
                      Participations participation, double fraction);
  void find_medians(std::span<const float> d, Participations participation,
                    const LowBitLayout& parts, ThreadPool& pool);

  std::vector<float> medians_;  // per block
  std::vector<float> floors_;   // per block
  std::vector<HeavyElement> heavy_;
};

/// Takes the denominators of all elements out of a saved state. Throws
/// Error(kCorruptCheckpoint) unless those of compressed parameters are above 0;
/// those of exact groups are not used, and may be 0.
[[nodiscard]] Buffer take_denominators(StateDict& state,
                                       const LowBitLayout& parts,
                                       std::size_t num_elements);

/// Returns who takes part by the variance and the caller's masks: inactive if
/// `v` is 0. Elements outside of `ranges` take part. Returns an empty vector if
/// all do.
[[nodiscard]] std::vector<std::uint8_t> participations(
    std::span<const float> v, std::span<const GroupRange> ranges,
    std::span<const float> mask);
/// Returns the Participation of every element in a saved state; empty: all take
/// part. Throws Error(kCorruptCheckpoint).
[[nodiscard]] std::vector<std::uint8_t> saved_participation(
    const StateDict& state, std::size_t num_elements);
/// Makes elements without a finite denominator unfit, and returns them.
/// `participation` stays empty if there are none.
[[nodiscard]] std::vector<std::size_t> leave_out_nonfinite(
    std::span<const float> d, std::span<const GroupRange> ranges,
    std::vector<std::uint8_t>& participation);

}  // namespace thinwire::optim
