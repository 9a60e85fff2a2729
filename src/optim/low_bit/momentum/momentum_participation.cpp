// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/momentum_participation.h"

#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>
#include <utility>

#include "core/visit_floats.h"
#include "optim/saved_state.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::optim {

using kernels::sign_words;

namespace {

constexpr const char* kLateGradients = "late_gradients";

// Returns bits, of which bit i is set if element i is not 0. NaN counts as not
// 0, and -0.0 counts as 0.
template <class T>
std::uint32_t nonzero_bits(const T* values, std::size_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const auto magnitude = [&](std::size_t i) {
    return static_cast<Bits>(std::bit_cast<Bits>(values[i]) << 1);
  };
  Bits any = 0;  // usually the only word that is needed
  for (std::size_t i = 0; i < count; ++i) any |= magnitude(i);
  if (any == 0) return 0;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < count; ++i)
    bits |= std::uint32_t{magnitude(i) != 0} << i;
  return bits;
}

bool is_set(std::span<const std::uint32_t> words, std::size_t i) {
  return (words[i / 32] >> (i % 32) & 1u) != 0;
}

void set_bit(std::span<std::uint32_t> words, std::size_t i) {
  words[i / 32] |= std::uint32_t{1} << (i % 32);
}

// Returns the bitwise OR of all ranks' words. Collective.
std::vector<std::uint32_t> any_rank(comm::Communicator& comm, StepMeter& meter,
                                    const std::vector<std::uint32_t>& own) {
  if (comm.size() == 1) return own;
  const std::size_t bytes = own.size() * sizeof own[0];
  std::vector<std::uint32_t> all(own.size() *
                                 static_cast<std::size_t>(comm.size()));
  meter.waiting([&] {
    comm.all_gather(
        ConstView(own.data(), bytes, DType::kUInt8),
        View(all.data(), all.size() * sizeof all[0], DType::kUInt8));
  });
  std::vector<std::uint32_t> joined(own.size());
  for (std::size_t i = 0; i < all.size(); ++i) joined[i % own.size()] |= all[i];
  return joined;
}

}  // namespace

bool MomentumParticipation::Waiting::has_arrived() const {
  for (std::size_t w = 0; w < late.size(); ++w)
    if (arrived(w) != 0) return true;
  return false;
}

std::size_t MomentumParticipation::num_words(const Waiting& waiting) const {
  return sign_words(model_.block(waiting.block).size);
}

void MomentumParticipation::set(std::vector<std::uint8_t> elements) {
  elements_ = std::move(elements);
  waiting_.clear();
  for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
    if (elements_.empty()) break;
    const Range& at = model_.block(b);
    Waiting waiting{.block = b};
    for (std::size_t i = 0; i < at.size; ++i)
      if (elements_[at.offset + i] == kLate) set_bit(waiting.late, i);
    if (waiting.late != Bits{}) waiting_.push_back(waiting);
  }
  num_left_out_ =
      elements_.size() - static_cast<std::size_t>(std::count(
                             elements_.begin(), elements_.end(), kTakesPart));
  exchange_.set_active(
      elements_.empty()
          ? exchange::ActiveMask()
          : exchange::ActiveMask(model_.layout.blocks,
                                 [&](std::size_t i) { return takes_part(i); }));
}

// ---- first gradients

bool MomentumParticipation::has_late(View grads) {
  model_.pool.for_each(waiting_.size(), [&](std::size_t k) {
    Waiting& at = waiting_[k];
    at.seen = {};
    if (!model_.has_gradient(at.block)) return;
    const View own = model_.gradient(at.block, grads);
    visit_floats(own, [&](const auto* g) {
      for (std::size_t w = 0; w < num_words(at); ++w)
        if (at.late[w] != 0)
          at.seen[w] = at.late[w] &
                       nonzero_bits(g + w * 32, std::min<std::size_t>(
                                                    32, own.size() - w * 32));
    });
  });
  return std::ranges::any_of(waiting_, &Waiting::has_arrived);
}

void MomentumParticipation::remember_late(View grads) {
  if (!has_late(grads)) return;
  for (Waiting& at : waiting_)
    for (std::size_t w = 0; w < at.seen.size(); ++w)
      at.remembered[w] |= at.seen[w];
}

// First agrees on the blocks with first gradients, so that only the elements of
// these blocks are exchanged next.
std::vector<std::uint32_t> MomentumParticipation::exchange_late(
    std::vector<std::uint32_t>& flags, StepMeter& step) const {
  flags.assign(sign_words(waiting_.size()), 0);
  for (std::size_t k = 0; k < waiting_.size(); ++k)
    if (waiting_[k].has_arrived()) set_bit(flags, k);
  flags = any_rank(model_.comm, step, flags);
  std::vector<std::uint32_t> words;
  for (std::size_t k = 0; k < waiting_.size(); ++k) {
    if (!is_set(flags, k)) continue;
    for (std::size_t w = 0; w < num_words(waiting_[k]); ++w)
      words.push_back(waiting_[k].arrived(w));
  }
  return any_rank(model_.comm, step, words);
}

// Turns the momentum into values under the old mask, because signs would decode
// to +-scale for elements whose momentum is 0.
std::vector<std::size_t> MomentumParticipation::admit_late(StepMeter& step) {
  form_.keep_as_values();
  const auto m = model_.adam.exp_avg().as<float>();
  exchange::ActiveMask active = exchange_.mask();
  std::vector<std::uint32_t> flags;
  const std::vector<std::uint32_t> words = exchange_late(flags, step);
  std::vector<std::size_t> admitted;
  std::size_t next = 0;
  for (std::size_t k = 0; k < waiting_.size(); ++k) {
    if (!is_set(flags, k)) continue;
    Waiting& at = waiting_[k];
    const auto arrived = std::span(words).subspan(next, num_words(at));
    next += arrived.size();
    const Range& values = model_.block(at.block);
    for (std::size_t i = 0; i < values.size; ++i) {
      if (!is_set(arrived, i)) continue;
      elements_[values.offset + i] = kTakesPart;
      m[values.offset + i] = 0;
      admitted.push_back(values.offset + i);
    }
    for (std::size_t w = 0; w < arrived.size(); ++w) at.late[w] &= ~arrived[w];
    at.seen = at.remembered = {};
    active.add(model_.layout.blocks, at.block, arrived);
  }
  std::erase_if(waiting_, [](const Waiting& at) { return at.late == Bits{}; });
  num_left_out_ -= admitted.size();
  exchange_.set_active(std::move(active));
  return admitted;
}

MaskChange MomentumParticipation::follow_masks() {
  MaskChange change;
  std::vector<std::uint8_t> elements = elements_;
  elements.resize(model_.size(), kTakesPart);
  for (const GroupRange& r : model_.layout.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      const bool is_out = model_.masks.leaves_out(i);
      if (elements[i] == kUnfit || is_out == (elements[i] == kOut)) continue;
      elements[i] = is_out ? kOut : kLate;
      (is_out ? change.excluded : change.included).push_back(i);
    }
  if (change.empty()) return change;
  form_.keep_as_values();  // under the old masks
  const auto m = model_.adam.exp_avg().as<float>();
  for (const std::size_t i : change.excluded) m[i] = 0;
  set(std::move(elements));
  return change;
}

// ---- state

void MomentumParticipation::add_to(State& state) const {
  if (!elements_.empty())
    state.add_elements("participation", Sharing::kSame, {{0, model_.size()}},
                       elements_);
  if (waiting_.empty()) return;  // all ranks return here or none does
  std::vector<std::size_t> late;
  for (const Waiting& at : waiting_)
    for (std::size_t i = 0; i < model_.block(at.block).size; ++i)
      if (is_set(at.remembered, i))
        late.push_back(model_.block(at.block).offset + i);
  Buffer ones = Buffer::of<std::uint8_t>(late.size());
  std::ranges::fill(ones.as<std::uint8_t>(), std::uint8_t{1});
  add_to_elements(state, kLateGradients, Sharing::kOwn, late, std::move(ones));
}

MomentumParticipation::Saved MomentumParticipation::read(
    const StateDict& state) const {
  Saved saved{.elements = saved_participation(state, model_.size()),
              .late = {}};
  if (!state.has_array(kLateGradients)) return saved;
  const auto elements = saved_elements(state, kLateGradients, model_.size());
  const auto came =
      saved_values<std::uint8_t>(state, kLateGradients, elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (came[i] != 0) saved.late.push_back(elements[i]);
  return saved;
}

void MomentumParticipation::restore(Saved&& saved) {
  set(std::move(saved.elements));
  auto next = saved.late.begin();
  for (Waiting& at : waiting_) {
    const Range& values = model_.block(at.block);
    next = std::lower_bound(next, saved.late.end(), values.offset);
    for (; next != saved.late.end() && *next < values.end(); ++next)
      if (is_set(at.late, *next - values.offset))
        set_bit(at.remembered, *next - values.offset);
  }
}

}  // namespace thinwire::optim
