// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/step_pieces.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The inactive elements, and which of them have a gradient now: an embedding's
/// row whose token occurs for the first time, or a layer that was silent. They
/// are the same on all ranks; gradients are not.
class LateElements {
 public:
  LateElements() = default;
  LateElements(const exchange::BlockLayout& blocks,
               Participations participation);

  /// Looks at the gradients of inactive elements. Returns whether one is not 0
  /// here, or was in a step that is remembered. `gradients` returns those of a
  /// block, empty if another rank looks at them.
  [[nodiscard]] bool look_at(
      const std::function<ConstView(std::size_t block)>& gradients,
      ThreadPool& pool);
  /// Keeps the result of the last look_at() until the next revive(), in steps
  /// in which ranks exchange nothing.
  void remember();

  /// Elements of one block, in bits.
  struct Arrivals {
    std::size_t block = 0;
    std::vector<std::uint32_t> words;
  };
  /// Returns, by block, the elements that have a gradient on some rank, which
  /// are active from now on. Collective, after look_at().
  [[nodiscard]] std::vector<Arrivals> revive(comm::Communicator& comm,
                                             StepMeter& meter);

  /// Describes this rank's memory of its local steps.
  void add_to(State& state) const;
  /// Restores that memory, of a state saved when these were the inactive
  /// elements.
  void load_memory(const StateDict& state, std::size_t num_elements);

 private:
  struct Waiting {
    std::size_t block = 0;
    Range values;
    std::size_t first_word = 0;
  };

  void add(std::size_t block, Range values, std::span<const std::uint32_t> late,
           std::span<const std::uint32_t> remembered);
  [[nodiscard]] std::size_t num_words(const Waiting& waiting) const;
  [[nodiscard]] std::uint32_t arrived(std::size_t word) const {
    return seen_[word] | remembered_[word];
  }

  std::vector<Waiting> waiting_;     // blocks that hold some, ascending
  std::vector<std::uint32_t> late_;  // of each of them one after the other
  std::vector<std::uint32_t> seen_;  // by the last look_at()
  std::vector<std::uint32_t> remembered_;  // of steps before
};

}  // namespace thinwire::optim
