// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/denominator/block_denominators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

std::optional<float> median_of(std::vector<float>& values) {
  if (values.empty()) return std::nullopt;
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Range> ranges_of_blocks(const LowBitLayout& parts) {
  std::vector<Range> ranges;
  for (const exchange::Block& block : parts.blocks.blocks())
    ranges.push_back(block.values);
  return ranges;
}

void require_blocks(const StateDict& state, const char* name,
                    const std::vector<Range>& blocks,
                    std::size_t num_elements) {
  if (saved_ranges(state, name, num_elements) != blocks)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("state array '{}' is of other blocks than this "
                            "optimizer's {}",
                            ranges_key(name), blocks.size()));
}

namespace {

constexpr std::size_t kMostElements = 1024;  // largest block

bool is_live(Participations participation, std::size_t i) {
  return participation.empty() || participation[i] == kTakesPart;
}

void append_live(std::span<const float> d, Participations participation,
                 std::vector<float>& live) {
  for (std::size_t i = 0; i < d.size(); ++i)
    if (is_live(participation, i)) live.push_back(d[i]);
}

std::optional<float> live_median(std::span<const float> d,
                                 Participations participation,
                                 std::span<const Range> ranges) {
  std::vector<float> live;
  for (const Range& range : ranges) {
    live.reserve(live.size() + range.size);
    append_live(d.subspan(range.offset, range.size),
                participations_of(participation, range), live);
  }
  return median_of(live);
}

// Returns the RMS of min(d, cap) over live elements, or nothing if there are
// none.
std::optional<double> capped_rms(std::span<const float> d,
                                 Participations participation, float cap) {
  std::array<float, kMostElements> capped;
  std::size_t count = 0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const bool live = is_live(participation, i);
    capped[i] = live ? std::min(d[i], cap) : 0;
    count += live ? 1 : 0;
  }
  if (count == 0) return std::nullopt;
  const double squares = kernels::sum_of_squares(
      ConstView(capped.data(), d.size(), DType::kFloat32));
  return std::sqrt(squares / static_cast<double>(count));
}

}  // namespace

void BlockDenominators::fit(std::span<float> d, Participations participation,
                            const LowBitLayout& parts, double fraction,
                            ThreadPool& pool) {
  find_medians(d, participation, parts, pool);
  floors_.assign(medians_.size(), 0);
  heavy_.clear();
  std::mutex heavy_mutex;
  pool.for_each(medians_.size(), [&](std::size_t b) {
    const Range& at = parts.blocks.blocks()[b].values;
    const auto own = d.subspan(at.offset, at.size);
    const auto takes_part = participations_of(participation, at);
    const auto heavy = cut_heavy(b, at, own, takes_part);
    raise_to_floor(b, own, takes_part, fraction);
    const std::lock_guard lock(heavy_mutex);
    heavy_.insert(heavy_.end(), heavy.begin(), heavy.end());
  });
  std::sort(heavy_.begin(), heavy_.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
}

std::vector<HeavyElement> BlockDenominators::cut_heavy(
    std::size_t b, Range at, std::span<float> d,
    Participations participation) const {
  std::vector<HeavyElement> heavy;
  for (std::size_t i = 0; i < d.size(); ++i) {
    if (!is_live(participation, i) || !(d[i] > cap(b))) continue;
    heavy.push_back({at.offset + i, cap(b) / d[i]});
    d[i] = cap(b);
  }
  return heavy;
}

std::optional<std::vector<HeavyElement>> BlockDenominators::fit_block(
    std::size_t b, Range at, std::span<float> d, Participations participation,
    double fraction) {
  std::vector<float> live;
  append_live(d, participation, live);
  const auto median = median_of(live);
  if (!median) return std::nullopt;
  medians_[b] = *median;
  auto heavy = cut_heavy(b, at, d, participation);
  raise_to_floor(b, d, participation, fraction);
  return heavy;
}

void BlockDenominators::raise_to_floor(std::size_t b, std::span<float> d,
                                       Participations participation,
                                       double fraction) {
  const double rms =
      capped_rms(d, participation, cap(b)).value_or(double{medians_[b]});
  const auto floor = static_cast<float>(fraction * rms);
  floors_[b] = floor;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const bool has_own = std::isfinite(d[i]) &&
                         (participation.empty() || participation[i] != kLate);
    d[i] = has_own ? std::max(d[i], floor) : of_late(b);
  }
}

void BlockDenominators::forget_heavy(std::span<const std::size_t> elements) {
  std::erase_if(heavy_, [&](const HeavyElement& heavy) {
    return std::ranges::binary_search(elements, heavy.index);
  });
}

void BlockDenominators::find_medians(std::span<const float> d,
                                     Participations participation,
                                     const LowBitLayout& parts,
                                     ThreadPool& pool) {
  const auto blocks = parts.blocks.blocks();
  medians_.assign(blocks.size(), 0);
  std::vector<std::uint8_t> is_missing(blocks.size());
  pool.for_each(blocks.size(), [&](std::size_t b) {
    const auto median = live_median(d, participation, {&blocks[b].values, 1});
    medians_[b] = median.value_or(0);
    is_missing[b] = median ? 0 : 1;
  });

  std::optional<float> of_model;
  for (std::size_t b = 0; b < blocks.size();) {
    const std::size_t parameter = parts.block_parameter[b];
    std::size_t end = b;
    bool misses_some = false;
    for (; end < blocks.size() && parts.block_parameter[end] == parameter;
         ++end)
      misses_some = misses_some || is_missing[end] != 0;
    if (misses_some) {
      const Range whole{blocks[b].values.offset,
                        blocks[end - 1].values.end() - blocks[b].values.offset};
      auto median = live_median(d, participation, {&whole, 1});
      if (!median) {
        if (!of_model)
          of_model = live_median(d, participation, parts.units).value_or(1.0f);
        median = of_model;
      }
      for (std::size_t i = b; i < end; ++i)
        if (is_missing[i] != 0) medians_[i] = *median;
    }
    b = end;
  }
}

void BlockDenominators::add_to(State& state, const LowBitLayout& parts) const {
  if (empty()) return;
  const std::vector<Range> ranges = ranges_of_blocks(parts);
  state.add_ranges("denominator_medians", Sharing::kSame, ranges, medians_);
  state.add_ranges("denominator_floors", Sharing::kSame, ranges, floors_);
  std::vector<std::size_t> elements;
  Buffer factors = Buffer::of<float>(heavy_.size());
  for (const HeavyElement& element : heavy_) {
    factors.as<float>()[elements.size()] = element.factor;
    elements.push_back(element.index);
  }
  add_to_elements(state, "heavy_factors", Sharing::kSame, elements,
                  std::move(factors));
}

BlockDenominators BlockDenominators::load(const StateDict& state,
                                          const LowBitLayout& parts,
                                          std::size_t num_elements) {
  BlockDenominators loaded;
  if (!state.has_array("denominator_medians")) return loaded;
  const std::vector<Range> ranges = ranges_of_blocks(parts);
  for (const char* name : {"denominator_medians", "denominator_floors"})
    require_blocks(state, name, ranges, num_elements);
  const auto floats = [&](const char* name) {
    return saved_values<float>(state, name, ranges.size(), Sign::kNotNegative);
  };
  loaded.medians_ = floats("denominator_medians");
  loaded.floors_ = floats("denominator_floors");
  std::vector<float> of_late;
  for (std::size_t b = 0; b < ranges.size(); ++b)
    of_late.push_back(loaded.of_late(b));
  require_usable("denominator_medians", std::as_const(of_late),
                 Sign::kPositive);
  const std::vector<std::size_t> indices =
      saved_elements(state, "heavy_factors", num_elements);
  const auto factors = saved_values<float>(state, "heavy_factors",
                                           indices.size(), Sign::kPositive);
  for (std::size_t i = 0; i < indices.size(); ++i)
    loaded.heavy_.push_back({indices[i], factors[i]});
  return loaded;
}

Buffer take_denominators(StateDict& state, const LowBitLayout& parts,
                         std::size_t num_elements) {
  constexpr const char* kName = "denominator";
  Buffer d = take_floats(state, kName, DType::kFloat32, num_elements);
  for (const auto& [range, group] : parts.compressed)
    require_usable(kName,
                   std::as_const(d).view().subview(range.offset, range.size),
                   Sign::kPositive, range.offset);
  return d;
}

std::vector<std::uint8_t> participations(std::span<const float> v,
                                         std::span<const GroupRange> ranges,
                                         std::span<const float> mask) {
  std::vector<std::uint8_t> all(v.size(), kTakesPart);
  bool everything = true;
  for (const GroupRange& r : ranges)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      if (!mask.empty() && mask[i] == 0)
        all[i] = kOut;
      else if (v[i] == 0)
        all[i] = kLate;
      everything = everything && all[i] == kTakesPart;
    }
  if (everything) all.clear();
  return all;
}

std::vector<std::uint8_t> saved_participation(const StateDict& state,
                                              std::size_t num_elements) {
  constexpr const char* kName = "participation";
  if (!state.has_array(kName)) return {};
  std::vector<std::uint8_t> saved;
  if (state.array(kName).dtype() == DType::kFloat32) {
    // A mean between kTakesPart and kLate shows that an element was inactive on
    // some ranks only.
    for (const float mean :
         saved_values<float>(state, kName, num_elements, Sign::kNotNegative))
      saved.push_back(static_cast<std::uint8_t>(std::min(mean, 255.0f)));
  } else {
    saved = saved_values<std::uint8_t>(state, kName, num_elements);
  }
  for (const std::uint8_t value : saved)
    if (value > kUnfit)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("state array 'participation' must hold values up "
                              "to {}, got {}",
                              static_cast<int>(kUnfit), value));
  return saved;
}

std::vector<std::size_t> leave_out_nonfinite(
    std::span<const float> d, std::span<const GroupRange> ranges,
    std::vector<std::uint8_t>& participation) {
  std::vector<std::size_t> left_out;
  for (const GroupRange& r : ranges)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      if (std::isfinite(d[i])) continue;
      if (participation.empty()) participation.assign(d.size(), kTakesPart);
      participation[i] = kUnfit;
      left_out.push_back(i);
    }
  return left_out;
}

}  // namespace thinwire::optim
