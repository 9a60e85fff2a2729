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

/// Gradients of a compressed step in a hierarchical exchange: the mean over
/// this host's ranks, for the blocks that this rank encodes. An fp32 mean
/// replaces the caller's values. A 16-bit mean is stored here in fp32,
/// unrounded, in 4 / G bytes per parameter. Gradients of exact parameters are
/// not changed; their means, which the norm needs, are stored here.
class HostGradients {
 public:
  /// All references must outlive this object.
  HostGradients(const comm::HostGroups& groups, ThreadPool& pool,
                const LowBitLayout& layout, const exchange::Places& places);
  /// Blocks until nothing is in flight.
  ~HostGradients();
  HostGradients(const HostGradients&) = delete;
  HostGradients& operator=(const HostGradients&) = delete;

  /// Begins with the elements that are complete within the ranges given since
  /// the last average(). Collective, queued.
  void begin_early(View grads, Range range);
  /// Blocks until nothing is in flight. Local.
  void finish_early();
  /// Computes the means of the pieces and their squares. Collective.
  void average(View grads, StepMeter& step);
  /// Computes the mean of all elements in place, rounded once. Collective.
  void average_all(View grads, StepMeter& step);

  /// Begins a step in which this rank uses all elements of its own gradients.
  /// Local.
  void begin_step() noexcept { pieces_only_ = false; }

  // ---- after average() or average_all()
  /// Returns whether this step has averaged only the blocks that this rank
  /// encodes.
  [[nodiscard]] bool has_pieces_only() const noexcept { return pieces_only_; }
  /// Returns the mean gradients of a block, as computed by average(). `grads`
  /// must be those passed to it.
  [[nodiscard]] View of(std::size_t block, View grads);
  /// Returns the sum of squares of a block, or 0 if another rank encodes it.
  [[nodiscard]] double squares(std::size_t block) const {
    return squares_[block];
  }
  /// Returns the sum of squares of all averages on this rank. Blocks are added
  /// first, then exact runs.
  [[nodiscard]] double sum_of_squares() const;

 private:
  // Adjacent elements that are reduced together.
  struct Run {
    Range range;
    std::vector<std::size_t> counts;  // per rank of the host
    bool stays_exact = false;
    Range own{};               // in the flat array
    std::size_t in_means = 0;  // offset of its mean in means_, if any
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
  std::size_t exact_size_ = 0;  // own elements of exact runs
  std::size_t own_size_ = 0;    // own elements of all runs
  Buffer means_;                // exact runs, then (with 16 bits) the others
  std::vector<std::size_t> block_in_means_;
  std::vector<double> squares_;        // per block
  std::vector<double> exact_squares_;  // per exact run
  exchange::ReadyRanges ready_;
  std::vector<comm::Work> works_;
  bool pieces_only_ = false;
};

}  // namespace thinwire::optim
