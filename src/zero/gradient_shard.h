// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/zero/copy_engine.h"
#include "thinwire/zero/shard_layout.h"
#include "zero/gradient_reduction.h"

namespace thinwire::zero {

/// In full precision, or in 16 bits. Whole gradients are reduced in place, and
/// each rank's own pieces are what it gets. Of buckets' memory there are a few;
/// where all of them wait for gradients one more is taken, since a bucket that
/// cannot be sent yet may wait for this very call.
class GradientShard final : public GradientReduction {
 public:
  GradientShard(const ReductionSettings& settings, CopyEngine* copies);
  /// Waits for what is under way: its memory goes with this object.
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
  // A bucket on its way.
  struct Slot {
    Buffer values;   // what this rank sends, if that has no other place
    Buffer reduced;  // this rank's piece, where it cannot stay
    Buffer host;     // the same, copied
    View result;     // where the piece comes
    std::size_t bucket = 0;
    bool adds = false;  // the piece is added to that of earlier backwards
    // The piece is in `host`, from where it goes to the shard.
    bool needs_host_copy = false;
    comm::Work work;
    CopyEngine::Ticket copied = 0;
  };
  using SlotPointer = std::unique_ptr<Slot>;

  [[nodiscard]] const ShardBucket& bucket(std::size_t b) const {
    return shards_.buckets()[b];
  }
  [[nodiscard]] Range own(std::size_t b) const;
  bool reduce(std::size_t bucket, View sums);
  // Nothing is sent, and nothing copied.
  [[nodiscard]] bool is_alone() const {
    return comm_.size() == 1 && copies_ == nullptr;
  }
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
  void finish_copy();

  comm::Communicator& comm_;
  const ShardLayout& shards_;
  const ZeroOptions& options_;
  const int batch_ranks_;
  CopyEngine* const copies_;  // null: gradients stay where they are

  // ---- the window
  View sums_;              // whole gradients
  Buffer shard_;           // this rank's reduced ones,
  bool in_shard_ = false;  // if they are not pieces of `sums_`
  DType wire_ = DType::kFloat32;
  exchange::Backward backward_;
  bool is_single_ = true;  // one backward: nothing is added up

  std::vector<SlotPointer> filling_;  // per bucket
  std::deque<SlotPointer> sent_;      // in their order
  std::deque<SlotPointer> arriving_;  // reduced, and being copied
  std::vector<SlotPointer> free_;
  std::size_t slots_ = 0;  // with memory of their own, wherever they are
  CopyEngine::Ticket last_copy_ = 0;
};

}  // namespace thinwire::zero
