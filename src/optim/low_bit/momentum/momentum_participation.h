// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/low_bit/momentum/kept_momentum.h"
#include "optim/low_bit/momentum/momentum_exchange.h"

namespace thinwire::optim {

/// Which elements of the momentum take part in its exchange. The others have a
/// momentum of 0: those that the caller masks, and inactive ones, which have
/// had no gradient so far. Each change here reaches exchange and values.
class MomentumParticipation {
 public:
  MomentumParticipation(LowBitModel& model, KeptMomentum& form,
                        MomentumExchange& exchange)
      : model_(model), form_(form), exchange_(exchange) {}

  /// Sets a Participation for every element; empty: all take part.
  void set(std::vector<std::uint8_t> elements);
  [[nodiscard]] Participations elements() const { return elements_; }
  [[nodiscard]] bool takes_part(std::size_t element) const {
    return elements_.empty() || elements_[element] == kTakesPart;
  }
  [[nodiscard]] std::size_t num_left_out() const { return num_left_out_; }

  /// Returns whether an inactive element has its first gradient here.
  [[nodiscard]] bool has_late(View grads);
  /// Keeps first gradients for the next admit_late(), in steps without an
  /// exchange.
  void remember_late(View grads);
  /// Activates the elements that have a first gradient on some rank, with a
  /// momentum of 0, and returns them. Collective, after has_late() was true on
  /// some rank.
  [[nodiscard]] std::vector<std::size_t> admit_late(StepMeter& step);
  /// Applies the caller's masks. An element that they leave out gives up its
  /// momentum. One that they leave out no more is inactive, as if it had never
  /// had a gradient. Unfit elements stay what they are.
  [[nodiscard]] MaskChange follow_masks();

  void add_to(State& state) const;
  struct Saved {
    std::vector<std::uint8_t> elements;
    std::vector<std::size_t> late;  // for the next admit_late(), ascending
  };
  /// Throws Error(kCorruptCheckpoint).
  [[nodiscard]] Saved read(const StateDict& state) const;
  void restore(Saved&& saved);

 private:
  // Elements of a block, in bits: it has 1024 at most.
  using Bits = std::array<std::uint32_t, 32>;
  // A block with inactive elements: an embedding's row whose token occurs for
  // the first time, or a layer that was silent.
  struct Waiting {
    std::size_t block = 0;
    Bits late{};        // the inactive ones
    Bits seen{};        // of them, those with a gradient in the last has_late()
    Bits remembered{};  // and in steps before

    [[nodiscard]] std::uint32_t arrived(std::size_t word) const {
      return seen[word] | remembered[word];
    }
    [[nodiscard]] bool has_arrived() const;
  };

  [[nodiscard]] std::size_t num_words(const Waiting& waiting) const;
  // Returns the bits of blocks that have a first gradient on some rank, one
  // after the other; `flags` says which these are. Collective.
  [[nodiscard]] std::vector<std::uint32_t> exchange_late(
      std::vector<std::uint32_t>& flags, StepMeter& step) const;

  LowBitModel& model_;
  KeptMomentum& form_;
  MomentumExchange& exchange_;
  std::vector<std::uint8_t> elements_;  // empty: every element takes part
  std::vector<Waiting> waiting_;        // the same on all ranks, ascending
  std::size_t num_left_out_ = 0;
};

}  // namespace thinwire::optim
