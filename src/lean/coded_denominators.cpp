// SPDX-License-Identifier: Apache-2.0
#include "lean/coded_denominators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "optim/saved_state.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::lean {

using kernels::CodeRange;
using optim::Axis;
using optim::HeavyElement;
using optim::Sharing;
using optim::State;
using optim::StateArray;

namespace {

std::vector<std::uint32_t> live_words(std::span<const std::uint8_t> elements) {
  std::vector<std::uint32_t> words(kernels::sign_words(elements.size()));
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (elements[i] == optim::kTakesPart)
      words[i / 32] |= std::uint32_t{1} << (i % 32);
  return words;
}

}  // namespace

CodedDenominators::CodedDenominators(optim::LowBitModel& model, int bits)
    : model_(model), bits_(bits) {
  first_byte_.push_back(0);
  for (std::size_t b = 0; b < model.num_blocks(); ++b)
    first_byte_.push_back(first_byte_.back() +
                          kernels::code_bytes(model.block(b).size, bits));
}

void CodedDenominators::begin() {
  codes_ = Buffer(first_byte_.back(), DType::kUInt8);
  ranges_.assign(model_.num_blocks(), {});
  blocks_ = optim::BlockDenominators(model_.num_blocks());
  exceptions_.clear();
}

std::vector<float> CodedDenominators::encode(
    std::size_t b, std::span<float> d, std::span<std::uint8_t> participation) {
  const Range& at = model_.block(b);
  std::vector<float> factors(at.size, 1.0f);
  std::vector<Exception> found;
  for (std::size_t i = 0; i < at.size; ++i) {
    if (std::isfinite(d[i])) continue;
    participation[i] = optim::kUnfit;
    factors[i] = 0;
    found.push_back({at.offset + i, 0});
  }
  const auto heavy =
      blocks_.fit_block(b, at, d, participation, model_.settings.denom_floor);
  if (!heavy) {
    blocks_.set_block(b, -1, 0);
  } else {
    for (const HeavyElement& element : *heavy) {
      factors[element.index - at.offset] = element.factor;
      found.push_back({element.index, element.factor});
    }
    const std::vector<std::uint32_t> live = live_words(participation);
    ranges_[b] = kernels::encode_denominators(d.data(), live.data(), at.size,
                                              bits_, codes_of(b));
  }
  const std::lock_guard lock(mutex_);
  exceptions_.insert(exceptions_.end(), found.begin(), found.end());
  return factors;
}

void CodedDenominators::gather(optim::StepMeter& step) {
  gather_cells(step);
  gather_exceptions(step);
  fill_dead_cells();
}

// Gathers codes and cells bucket by bucket. The parts of the ranks lie in the
// order of their places.
void CodedDenominators::gather_cells(optim::StepMeter& step) {
  const std::vector<int> rank_at = comm::ranks_by_place(model_.comm.hosts());
  const auto own = static_cast<std::size_t>(model_.comm.rank());
  for (const exchange::Bucket& bucket : model_.layout.blocks.buckets()) {
    const std::size_t first = bucket.first_block();
    std::vector<Range> bytes(rank_at.size()), cells(rank_at.size());
    for (std::size_t place = 0; place < rank_at.size(); ++place) {
      const auto rank = static_cast<std::size_t>(rank_at[place]);
      const std::size_t begin = bucket.server_begin[place];
      const std::size_t end = bucket.server_begin[place + 1];
      bytes[rank] = {first_byte_[begin] - first_byte_[first],
                     first_byte_[end] - first_byte_[begin]};
      cells[rank] = {(begin - first) * sizeof(Cell),
                     (end - begin) * sizeof(Cell)};
    }
    std::vector<Cell> all(bucket.end_block() - first);
    const Range served = model_.places.served_of(bucket);
    for (std::size_t b = served.offset; b < served.end(); ++b)
      all[b - first] = {ranges_[b], blocks_.median(b), blocks_.floor(b)};
    const View codes = codes_.view().subview(
        first_byte_[first],
        first_byte_[bucket.end_block()] - first_byte_[first]);
    const View of_cells(all.data(), all.size() * sizeof(Cell), DType::kUInt8);
    step.waiting([&] {
      const auto gather = [&](View whole, const std::vector<Range>& pieces) {
        const Range& piece = pieces[own];
        model_.comm
            .queue_all_gather(whole.subview(piece.offset, piece.size), whole,
                              pieces)
            .wait();
      };
      gather(codes, bytes);
      gather(of_cells, cells);
    });
    for (std::size_t b = first; b < bucket.end_block(); ++b) {
      const Cell& cell = all[b - first];
      ranges_[b] = cell.range;
      blocks_.set_block(b, cell.median, cell.floor);
    }
  }
}

void CodedDenominators::gather_exceptions(optim::StepMeter& step) {
  const auto ranks = static_cast<std::size_t>(model_.comm.size());
  const auto own = static_cast<std::int64_t>(exceptions_.size());
  std::vector<std::int64_t> counts(ranks);
  step.waiting([&] { model_.comm.all_gather(std::span(&own, 1), counts); });
  std::size_t total = 0;
  std::vector<std::size_t> bytes;
  for (const std::int64_t count : counts) {
    total += static_cast<std::size_t>(count);
    bytes.push_back(static_cast<std::size_t>(count) * sizeof(Exception));
  }
  std::vector<Exception> all(total);
  step.waiting([&] {
    model_.comm.all_gather(
        ConstView(exceptions_.data(), exceptions_.size() * sizeof(Exception),
                  DType::kUInt8),
        View(all.data(), all.size() * sizeof(Exception), DType::kUInt8), bytes);
  });
  std::sort(all.begin(), all.end(),
            [](const auto& x, const auto& y) { return x.index < y.index; });
  std::vector<HeavyElement> heavy;
  for (const Exception& element : all)
    if (element.factor != 0) heavy.push_back({element.index, element.factor});
  blocks_.set_heavy(std::move(heavy));
  exceptions_ = std::move(all);
}

// Returns the median of the medians of the parameter's cells. If the parameter
// has no cells with a median, returns the median of the whole model, or 1.
float CodedDenominators::typical(std::size_t parameter) const {
  std::vector<float> of_parameter, of_model;
  for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
    if (blocks_.median(b) < 0) continue;
    of_model.push_back(blocks_.median(b));
    if (model_.layout.block_parameter[b] == parameter)
      of_parameter.push_back(blocks_.median(b));
  }
  const auto found = optim::median_of(of_parameter);
  return found ? *found : optim::median_of(of_model).value_or(1.0f);
}

// Computes all typical values before it fills a cell, because filled cells are
// no evidence.
void CodedDenominators::fill_dead_cells() {
  struct Dead {
    std::size_t block;
    float median;
  };
  std::vector<Dead> dead;
  for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
    if (blocks_.median(b) >= 0) continue;
    const std::size_t parameter = model_.layout.block_parameter[b];
    const bool known =
        !dead.empty() &&
        model_.layout.block_parameter[dead.back().block] == parameter;
    dead.push_back({b, known ? dead.back().median : typical(parameter)});
  }
  for (const auto& [b, median] : dead) {
    const double floor = model_.settings.denom_floor * double{median};
    blocks_.set_block(b, median, static_cast<float>(floor));
    ranges_[b] = {.low = static_cast<float>(kernels::log2(blocks_.of_late(b)))};
  }
}

std::vector<std::uint8_t> CodedDenominators::participation() const {
  std::vector<std::uint8_t> elements(model_.size(), optim::kTakesPart);
  bool everything = true;
  for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
    const Range& at = model_.block(b);
    for (std::size_t i = 0; i < at.size; ++i) {
      if (kernels::code_at(codes_of(b), i, bits_) != 0) continue;
      elements[at.offset + i] =
          model_.masks.leaves_out(at.offset + i) ? optim::kOut : optim::kLate;
      everything = false;
    }
  }
  for (const Exception& element : exceptions_)
    if (element.factor == 0) elements[element.index] = optim::kUnfit;
  if (everything) elements.clear();
  return elements;
}

void CodedDenominators::set_codes(
    std::span<const std::size_t> elements,
    const std::function<int(std::size_t)>& code_in) {
  const auto blocks = model_.layout.blocks.blocks();
  auto block = blocks.begin();
  for (const std::size_t i : elements) {
    while (block->values.end() <= i) ++block;
    const auto b = static_cast<std::size_t>(block - blocks.begin());
    kernels::set_code(codes_of(b), i - block->values.offset, bits_, code_in(b));
  }
}

void CodedDenominators::admit(std::span<const std::size_t> elements) {
  set_codes(elements, [this](std::size_t b) {
    return kernels::code_of(blocks_.of_late(b), ranges_[b], bits_);
  });
}

void CodedDenominators::leave_out(std::span<const std::size_t> elements) {
  set_codes(elements, [](std::size_t) { return 0; });
  blocks_.forget_heavy(elements);
}

// Elements without a denominator get infinity, which bounds nothing.
std::span<const float> CodedDenominators::of_block(std::size_t b,
                                                   std::span<float> to) const {
  const Range& at = model_.block(b);
  const kernels::InverseTables tables = kernels::inverse_tables(ranges_[b]);
  for (std::size_t i = 0; i < at.size; ++i) {
    const int code = kernels::code_at(codes_of(b), i, bits_);
    to[i] = code == 0 ? std::numeric_limits<float>::infinity()
                      : 1.0f / tables.inverse(code - 1);
  }
  return to.first(at.size);
}

void CodedDenominators::guard(View grads, double grad_scale,
                              std::span<const double> chunk_squares) const {
  optim::scale_heavy(model_, grads, heavy());
  optim::bound_outliers(
      model_, blocks_,
      [this](std::size_t b, std::array<float, 1024>& scratch) {
        return of_block(b, scratch);
      },
      grads, grad_scale, chunk_squares);
}

kernels::CodedUpdateArrays CodedDenominators::arrays(std::size_t b) const {
  return {.codes = codes_of(b),
          .range = ranges_[b],
          .bits = bits_,
          .size = model_.block(b).size};
}

std::string CodedDenominators::checksums() const {
  const ConstView ranges(ranges_.data(), ranges_.size() * sizeof(CodeRange),
                         DType::kUInt8);
  return fmt::format("codes {:016x} ranges {:016x}\n", checksum(codes_.view()),
                     checksum(ranges));
}

namespace {

constexpr const char* kCodes = "denominator_codes";
constexpr const char* kLows = "denominator_lows";
constexpr const char* kSteps = "denominator_steps";
constexpr float kMostLog2 = 150;  // above any fp32 denominator's

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
    // Logarithm of a block's largest denominator. `lows` contains the logarithm
    // of the smallest.
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
