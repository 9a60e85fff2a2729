// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/late_elements.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "core/visit_floats.h"
#include "optim/saved_state.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::optim {

using kernels::sign_words;

namespace {

// Returns bits of which bit i says that element i is not 0. NaN is not; -0.0
// is.
template <class T>
std::uint32_t nonzero_bits(const T* values, std::size_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const auto magnitude = [&](std::size_t i) {
    return static_cast<Bits>(std::bit_cast<Bits>(values[i]) << 1);
  };
  Bits any = 0;  // in most steps of most elements that is all
  for (std::size_t i = 0; i < count; ++i) any |= magnitude(i);
  if (any == 0) return 0;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < count; ++i)
    bits |= std::uint32_t{magnitude(i) != 0} << i;
  return bits;
}

// Returns the ranks' words, OR-ed. Collective.
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

LateElements::LateElements(const exchange::BlockLayout& blocks,
                           Participations participation) {
  if (participation.empty()) return;
  for (std::size_t b = 0; b < blocks.blocks().size(); ++b) {
    const Range& values = blocks.blocks()[b].values;
    std::vector<std::uint32_t> late(sign_words(values.size));
    for (std::size_t i = 0; i < values.size; ++i)
      if (participation[values.offset + i] == kLate)
        late[i / 32] |= std::uint32_t{1} << (i % 32);
    add(b, values, late, std::vector<std::uint32_t>(late.size()));
  }
}

void LateElements::add(std::size_t block, Range values,
                       std::span<const std::uint32_t> late,
                       std::span<const std::uint32_t> remembered) {
  if (std::all_of(late.begin(), late.end(), [](auto w) { return w == 0; }))
    return;
  waiting_.push_back({block, values, late_.size()});
  late_.insert(late_.end(), late.begin(), late.end());
  remembered_.insert(remembered_.end(), remembered.begin(), remembered.end());
  seen_.resize(late_.size());
}

std::size_t LateElements::num_words(const Waiting& waiting) const {
  return sign_words(waiting.values.size);
}

bool LateElements::look_at(
    const std::function<ConstView(std::size_t)>& gradients, ThreadPool& pool) {
  pool.for_each(waiting_.size(), [&](std::size_t k) {
    const Waiting& at = waiting_[k];
    const ConstView own = gradients(at.block);
    visit_floats(own, [&](const auto* g) {
      for (std::size_t w = 0; w < num_words(at); ++w) {
        const std::size_t word = at.first_word + w;
        const std::size_t count =
            std::min<std::size_t>(32, at.values.size - w * 32);
        seen_[word] = own.empty() || late_[word] == 0
                          ? 0
                          : late_[word] & nonzero_bits(g + w * 32, count);
      }
    });
  });
  for (std::size_t word = 0; word < late_.size(); ++word)
    if (arrived(word) != 0) return true;
  return false;
}

void LateElements::remember() {
  for (std::size_t w = 0; w < seen_.size(); ++w) remembered_[w] |= seen_[w];
}

// Exchanges first which blocks, then which elements of those: few ranks have
// many.
std::vector<LateElements::Arrivals> LateElements::revive(
    comm::Communicator& comm, StepMeter& meter) {
  std::vector<std::uint32_t> flags(sign_words(waiting_.size()));
  for (std::size_t k = 0; k < waiting_.size(); ++k)
    for (std::size_t w = 0; w < num_words(waiting_[k]); ++w)
      if (arrived(waiting_[k].first_word + w) != 0)
        flags[k / 32] |= std::uint32_t{1} << (k % 32);
  flags = any_rank(comm, meter, flags);

  std::vector<Arrivals> arrivals;
  std::vector<std::uint32_t> words;
  for (std::size_t k = 0; k < waiting_.size(); ++k) {
    if ((flags[k / 32] >> (k % 32) & 1u) == 0) continue;
    arrivals.push_back({waiting_[k].block, {}});
    for (std::size_t w = 0; w < num_words(waiting_[k]); ++w)
      words.push_back(arrived(waiting_[k].first_word + w));
  }
  words = any_rank(comm, meter, words);

  LateElements rest;
  std::size_t at = 0;
  std::size_t next = 0;
  for (const Waiting& waiting : waiting_) {
    const auto own = [&](const std::vector<std::uint32_t>& of) {
      return std::span(of).subspan(waiting.first_word, num_words(waiting));
    };
    std::vector<std::uint32_t> late(own(late_).begin(), own(late_).end());
    if (next < arrivals.size() && arrivals[next].block == waiting.block) {
      const auto begin = words.begin() + static_cast<std::ptrdiff_t>(at);
      arrivals[next].words.assign(
          begin, begin + static_cast<std::ptrdiff_t>(late.size()));
      for (std::size_t w = 0; w < late.size(); ++w)
        late[w] &= ~arrivals[next].words[w];
      at += late.size();
      ++next;
    }
    rest.add(waiting.block, waiting.values, late,
             std::vector<std::uint32_t>(late.size()));
  }
  *this = std::move(rest);
  return arrivals;
}

void LateElements::add_to(State& state) const {
  std::vector<std::size_t> elements;
  for (const Waiting& at : waiting_)
    for (std::size_t i = 0; i < at.values.size; ++i)
      if ((remembered_[at.first_word + i / 32] >> (i % 32) & 1u) != 0)
        elements.push_back(at.values.offset + i);
  if (waiting_.empty()) return;  // on all ranks
  Buffer ones = Buffer::of<std::uint8_t>(elements.size());
  std::fill_n(ones.as<std::uint8_t>().begin(), ones.size(), std::uint8_t{1});
  add_to_elements(state, "late_gradients", Sharing::kOwn, elements,
                  std::move(ones));
}

void LateElements::load_memory(const StateDict& state,
                               std::size_t num_elements) {
  if (!state.has_array("late_gradients")) return;
  const auto elements = saved_elements(state, "late_gradients", num_elements);
  const auto came =
      saved_values<std::uint8_t>(state, "late_gradients", elements.size());
  auto next = elements.begin();
  for (const Waiting& at : waiting_) {
    next = std::lower_bound(next, elements.end(), at.values.offset);
    for (; next != elements.end() && *next < at.values.end(); ++next) {
      if (came[static_cast<std::size_t>(next - elements.begin())] == 0)
        continue;
      const std::size_t i = *next - at.values.offset;
      const std::size_t word = at.first_word + i / 32;
      remembered_[word] |= late_[word] & std::uint32_t{1} << (i % 32);
    }
  }
}

}  // namespace thinwire::optim
