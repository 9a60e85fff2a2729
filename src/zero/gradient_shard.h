// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/zero/shard_layout.h"
#include "zero/gradient_reduction.h"

namespace thinwire::zero {

/// Reduction in full precision or in 16 bits. Whole gradients are reduced in
/// place, into each rank's own pieces. Otherwise memory for kSlots buckets is
/// allocated. If all of them wait for gradients, one more is allocated, because
/// a bucket that cannot be sent yet may wait for this very call.
class GradientShard final : public GradientReduction {
 public:
  explicit GradientShard(const ReductionSettings& settings);
  /// Waits for pending reductions, which use the memory of this object.
  ~GradientShard() override;

  void begin(exchange::Backward which, DType gradients) override;
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket, View whole) override;
  void finish() override;
  void abandon() noexcept override;
  [[nodiscard]] View piece(std::size_t bucket) override;
  [[nodiscard]] double divisor(double loss_scale) const noexcept override;
  void begin_window() override;

 private:
  // A bucket in flight.
  struct Slot {
    Buffer values;   // values to send, unless they are sent in place
    Buffer reduced;  // this rank's piece, unless it is reduced in place
    View result;     // memory of the piece
    std::size_t bucket = 0;
    bool adds = false;  // add the piece to earlier backwards'
    comm::Work work;
  };
  using SlotPointer = std::unique_ptr<Slot>;

  [[nodiscard]] const ShardBucket& bucket(std::size_t b) const {
    return shards_.buckets()[b];
  }
  [[nodiscard]] Range own(std::size_t b) const;
  bool reduce(std::size_t bucket, View sums);
  // Returns whether nothing is sent.
  [[nodiscard]] bool is_alone() const { return comm_.size() == 1; }
  [[nodiscard]] bool is_part_of_batch() const {
    return batch_ranks_ != comm_.size();
  }
  [[nodiscard]] DType wire_of(DType gradients) const;
  [[nodiscard]] comm::ReduceOp op(DType wire) const;
  [[nodiscard]] DType reduced_dtype(DType wire) const;
  [[nodiscard]] View own_part(std::size_t b);
  void make_shard(DType dtype);

  [[nodiscard]] SlotPointer make_slot();
  [[nodiscard]] SlotPointer take_slot();
  [[nodiscard]] Slot& slot_of(std::size_t bucket);
  [[nodiscard]] View scratch(Slot& slot, std::size_t size);
  void finish_reduction();

  comm::Communicator& comm_;
  const ShardLayout& shards_;
  const ZeroOptions& options_;
  const int batch_ranks_;

  // ---- the window
  View sums_;              // whole gradients
  Buffer shard_;           // this rank's reduced gradients
  bool in_shard_ = false;  // whether they are in `shard_` instead of `sums_`
  DType wire_ = DType::kFloat32;
  exchange::Backward backward_;
  bool is_single_ = true;  // the window has one backward

  std::vector<SlotPointer> filling_;  // per bucket
  std::deque<SlotPointer> sent_;      // in the order of sending
  std::vector<SlotPointer> free_;
  std::size_t slots_ = 0;  // number of slots with memory
};

}  // namespace thinwire::zero
