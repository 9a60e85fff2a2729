// SPDX-License-Identifier: Apache-2.0
// State of coded denominators: one byte per element, whatever its bits in
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lean/coded_denominators.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::lean {

using optim::Axis;
using optim::Sharing;
using optim::State;
using optim::StateArray;

namespace {

constexpr const char* kCodes = "denominator_codes";
constexpr const char* kLows = "denominator_lows";
constexpr const char* kSteps = "denominator_steps";
constexpr float kMostLog2 = 150;  // beyond what a denominator in fp32 can be

void add_floats(State& state, const char* name, std::vector<Range> ranges,
                std::span<const float> values) {
  Buffer own = Buffer::of<float>(values.size());
  std::ranges::copy(values, own.as<float>().begin());
  StateArray& added =
      state.add_ranges(name, Sharing::kSame, std::move(ranges), own.view());
  added.read = StateArray::from(std::move(own));
}

}  // namespace

void CodedDenominators::add_to(State& state) const {
  state.arrays.push_back(
      {.name = kCodes,
       .dtype = DType::kUInt8,
       .axis = Axis::kElement,
       .sharing = Sharing::kSame,
       .size = model_.size(),
       .ranges = {{0, model_.size()}},
       .read = [this](Range range, View to) {
         const auto codes = to.as<std::uint8_t>();
         const auto blocks = model_.layout.blocks.blocks();
         auto block = std::ranges::partition_point(blocks, [&](const auto& b) {
           return b.values.end() <= range.offset;
         });
         for (std::size_t i = range.offset; i < range.end(); ++i) {
           while (block->values.end() <= i) ++block;
           const auto b = static_cast<std::size_t>(block - blocks.begin());
           codes[i - range.offset] = static_cast<std::uint8_t>(
               kernels::code_at(codes_of(b), i - block->values.offset, bits_));
         }
       }});
  std::vector<float> lows, steps;
  for (const kernels::CodeRange& range : ranges_) {
    lows.push_back(range.low);
    steps.push_back(range.step);
  }
  add_floats(state, kLows, optim::ranges_of_blocks(model_.layout), lows);
  add_floats(state, kSteps, optim::ranges_of_blocks(model_.layout), steps);
  blocks_.add_to(state, model_.layout);
}

Buffer CodedDenominators::packed(std::span<const std::uint8_t> elements) const {
  Buffer codes(first_byte_.back(), DType::kUInt8);
  for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
    const Range& at = model_.block(b);
    for (std::size_t i = 0; i < at.size; ++i)
      kernels::set_code(codes.as<std::uint8_t>().data() + first_byte_[b], i,
                        bits_, elements[at.offset + i]);
  }
  return codes;
}

CodedDenominators::Saved CodedDenominators::read(const StateDict& state) const {
  const auto codes =
      optim::saved_values<std::uint8_t>(state, kCodes, model_.size());
  const int most = 1 + kernels::most_code_steps(bits_);
  for (const std::uint8_t code : codes)
    if (code > most)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("state array '{}' must hold values up to {}, got "
                              "{}",
                              kCodes, most, code));
  Saved saved{.codes = packed(codes), .ranges = {}, .blocks = {}};
  const std::vector<Range> ranges = optim::ranges_of_blocks(model_.layout);
  const auto floats = [&](const char* name) {
    if (ranges.empty()) return std::vector<float>();
    optim::require_blocks(state, name, ranges, model_.size());
    return optim::saved_values<float>(state, name, ranges.size());
  };
  const std::vector<float> lows = floats(kLows);
  const std::vector<float> steps = floats(kSteps);
  for (std::size_t b = 0; b < ranges.size(); ++b) {
    // Logarithms of a block's smallest and largest denominator.
    const float largest =
        lows[b] +
        static_cast<float>(kernels::most_code_steps(bits_)) * steps[b];
    if (lows[b] < -kMostLog2 || !(steps[b] >= 0) || largest > kMostLog2)
      throw optim::UnusableValue(fmt::format(
          "'{}' and '{}' must be of denominators from 2^-{} to 2^{}, got {} "
          "and {} at element {}",
          kLows, kSteps, kMostLog2, kMostLog2, lows[b], steps[b], b));
    saved.ranges.push_back({lows[b], steps[b]});
  }
  saved.blocks =
      optim::BlockDenominators::load(state, model_.layout, model_.size());
  if (saved.blocks.empty() && !ranges.empty())
    static_cast<void>(state.array("denominator_medians"));
  return saved;
}

void CodedDenominators::restore(Saved&& saved) {
  codes_ = std::move(saved.codes);
  ranges_ = std::move(saved.ranges);
  blocks_ = std::move(saved.blocks);
  exceptions_.clear();
}

void CodedDenominators::clear() { restore({}); }

}  // namespace thinwire::lean
