// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/pipeline/places.h"
#include "exchange/ready_ranges.h"
#include "optim/low_bit/layout.h"
#include "optim/step_pieces.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"

namespace thinwire::optim {

/// The gradients of one compressed step in a hierarchical exchange: the mean
/// over the ranks of this host, for the blocks that this rank encodes. The mean
/// of fp32 replaces the caller's values. That of 16 bits is kept here in fp32,
/// unrounded: 4 / G bytes per parameter. Parameters that stay exact are not
/// changed; their means, which the norm needs, are kept here.
class HostGradients {
 public:
  /// All references must outlive it.
  HostGradients(const comm::HostGroups& groups, ThreadPool& pool,
                const LowBitLayout& layout, const exchange::Places& places);
  /// Blocks until nothing is in flight.
  ~HostGradients();
  HostGradients(const HostGradients&) = delete;
  HostGradients& operator=(const HostGradients&) = delete;

  /// Begins with what lies within the ranges given since the last average().
  /// Collective, queued.
  void begin_early(View grads, Range range);
  /// Blocks until nothing is in flight. Local.
  void finish_early();
  /// Computes the mean of the pieces, and their squares. Collective.
  void average(View grads, StepMeter& step);
  /// Computes the mean of all elements instead, in place, rounded once.
  /// Collective.
  void average_all(View grads, StepMeter& step);

  /// Begins a step, with all elements of this rank's own gradients. Local.
  void begin_step() noexcept { pieces_only_ = false; }

  // ---- after these
  /// Returns whether only the blocks that this rank encodes have been averaged.
  [[nodiscard]] bool has_pieces_only() const noexcept { return pieces_only_; }
  /// Returns the gradients of a block, of which average() has computed the
  /// mean. `grads` are those of average().
  [[nodiscard]] View of(std::size_t block, View grads);
  /// Returns the sum of squares of a block, 0 if another rank encodes it.
  [[nodiscard]] double squares(std::size_t block) const {
    return squares_[block];
  }
  /// Returns the sum of squares of all that this rank has averaged: blocks
  /// first, each in their order.
  [[nodiscard]] double sum_of_squares() const;

 private:
  // Neighbouring elements that are reduced together.
  struct Run {
    Range range;
    std::vector<std::size_t> counts;  // per rank of the host
    bool stays_exact = false;
    Range own{};               // of the flat array
    std::size_t in_means = 0;  // where its own mean lies in means_, if it does
    bool has_begun = false;
  };

  void add_bucket(const exchange::Bucket& bucket);
  void place();
  void begin(View grads, Run& run);

  comm::Communicator& inside_;
  ThreadPool& pool_;
  const LowBitLayout& layout_;
  const exchange::Places places_;
  std::vector<Run> runs_;
  std::size_t exact_size_ = 0;  // own elements of runs that stay exact
  std::size_t own_size_ = 0;    // own elements of all runs
  Buffer means_;                // exact ones, then, if 16 bits came, the others
  std::vector<std::size_t> block_in_means_;
  std::vector<double> squares_;        // per block
  std::vector<double> exact_squares_;  // per run that stays exact
  exchange::ReadyRanges ready_;
  std::vector<comm::Work> works_;
  bool pieces_only_ = false;
};

}  // namespace thinwire::optim
