// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/low_bit/momentum/kept_momentum.h"
#include "optim/low_bit/momentum/momentum_exchange.h"

namespace thinwire::optim {

/// The elements of the momentum that take part in its exchange. All others have
/// a momentum of 0: elements that the caller masks, and inactive elements,
/// which have had no gradient so far. Each change here is passed on to exchange
/// and values.
class MomentumParticipation {
 public:
  MomentumParticipation(LowBitModel& model, KeptMomentum& form,
                        MomentumExchange& exchange)
      : model_(model), form_(form), exchange_(exchange) {}

  /// Sets the Participation of every element; empty if all take part.
  void set(std::vector<std::uint8_t> elements);
  [[nodiscard]] Participations elements() const { return elements_; }
  [[nodiscard]] bool takes_part(std::size_t element) const {
    return elements_.empty() || elements_[element] == kTakesPart;
  }
  [[nodiscard]] std::size_t num_left_out() const { return num_left_out_; }

  /// Returns whether an inactive element has its first gradient here.
  [[nodiscard]] bool has_late(View grads);
  /// Records first gradients for the next admit_late(), in steps without an
  /// exchange.
  void remember_late(View grads);
  /// Activates the elements that have a first gradient on any rank, with a
  /// momentum of 0, and returns them. Call it if has_late() was true on any
  /// rank. Collective.
  [[nodiscard]] std::vector<std::size_t> admit_late(StepMeter& step);
  /// Applies the caller's masks. An element that they exclude loses its
  /// momentum. An element that they include again is inactive, as if it had
  /// never had a gradient. Unfit elements remain unfit.
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
  // Elements of a block as bits; a block has at most 1024.
  using Bits = std::array<std::uint32_t, 32>;
  // A block with inactive elements, for example an embedding's row whose token
  // has not occurred, or a layer without gradients so far.
  struct Waiting {
    std::size_t block = 0;
    Bits late{};        // inactive elements
    Bits seen{};        // those with a gradient in the last has_late()
    Bits remembered{};  // those with a gradient in earlier steps

    [[nodiscard]] std::uint32_t arrived(std::size_t word) const {
      return seen[word] | remembered[word];
    }
    [[nodiscard]] bool has_arrived() const;
  };

  [[nodiscard]] std::size_t num_words(const Waiting& waiting) const;
  // Returns the bits of the blocks, one after the other, that `flags` marks as
  // having a first gradient on some rank. Collective.
  [[nodiscard]] std::vector<std::uint32_t> exchange_late(
      std::vector<std::uint32_t>& flags, StepMeter& step) const;

  LowBitModel& model_;
  KeptMomentum& form_;
  MomentumExchange& exchange_;
  std::vector<std::uint8_t> elements_;  // empty if every element takes part
  std::vector<Waiting> waiting_;        // ascending, equal on all ranks
  std::size_t num_left_out_ = 0;
};

}  // namespace thinwire::optim
