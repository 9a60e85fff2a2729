// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "exchange/record_route.h"
#include "precision/loss_scale.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"
#include "thinwire/zero/wire_options.h"
#include "zero/gradient_reduction.h"
#include "zero/wire/host_means.h"

namespace thinwire::zero {

/// How gradients of one group of ranks travel in few bits.
struct LowBitReduction {
  int bits = 4;
  DType residual_dtype = DType::kBFloat16;
  bool keeps = false;  ///< Residuals of a skipped step are as before it.
  /// Nothing leaves before finish(): ranks first agree that all gradients, of
  /// all groups, are finite.
  bool agrees_first = false;
  bool average = true;
  bool overlap = true;  ///< Else a bucket is waited for once sent.
  int batch_ranks = 1;  ///< Ranks over which the mean is taken.
};

/// Gradients in 4 or 8 bits, with error feedback: per block, a cell of the grid
/// within one parameter, r the reciprocal of the loss scale,
///   c = g * r + e,  q of c,  e = c - q * step;  owner: mean of q * step.
/// Backwards that are handed over one by one before the last are added to the
/// residuals, which have to be fp32: e = e + g * r.
///
/// Where hosts are not flat, g is the mean of a host, which local rank l has
/// and sends for the pieces of the ranks l of all hosts; e is of those.
class LowBitGradients final : public GradientReduction {
 public:
  /// All references outlive this object.
  LowBitGradients(comm::Communicator& comm, const ShardLayout& shards,
                  std::span<const Range> units, const LowBitReduction& settings,
                  const precision::LossScale& scale, ThreadPool& pool);
  ~LowBitGradients() override;

  bool reduce(View sums, std::size_t bucket) override;
  void begin(exchange::Backward which, DType gradients) override;
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket) override;
  void withhold(Range nonfinite) override;
  void finish() override;
  void abandon() noexcept override;
  /// Means in fp32, without the loss scale.
  [[nodiscard]] View piece(std::size_t bucket) override;
  [[nodiscard]] double divisor(double /*loss_scale*/) const noexcept override {
    return 1;
  }
  bool settle(bool is_applied) override;
  void begin_window() override;

  /// Of the elements of all buckets, bucket after bucket.
  [[nodiscard]] ConstView residuals() const noexcept {
    return residuals_.view();
  }
  /// What of each bucket this rank has residuals of.
  [[nodiscard]] std::vector<Range> parts() const;
  /// Of as many elements of the same dtype; none: all 0.
  void set_residuals(Buffer&& residuals);

 private:
  // A bucket on its way.
  struct Slot {
    Buffer records;
    Buffer received;
    std::size_t bucket = 0;
    comm::Work work{};
  };

  [[nodiscard]] View residuals_of(Buffer& all, Range elements,
                                  std::size_t bucket) const;
  [[nodiscard]] Slot& take_slot();
  [[nodiscard]] Range part(std::size_t bucket) const;
  [[nodiscard]] std::vector<int> peers() const;
  void take_whole(std::size_t bucket, ConstView values, Buffer&& kept);
  void take_mean();
  void encode_and_send(std::size_t bucket, ConstView values);
  void encode(Slot& slot, std::size_t bucket, ConstView values);
  void finish_oldest();
  void decode(const Slot& slot);
  [[nodiscard]] Buffer& values_of(std::size_t bucket);

  comm::Communicator& comm_;
  const ShardLayout& shards_;
  const LowBitReduction settings_;
  const precision::LossScale& scale_;
  ThreadPool& pool_;
  comm::HostGroups groups_;             // empty where flat
  std::unique_ptr<HostMeans> host_;     // null where flat
  const exchange::BlockLayout blocks_;  // among the ranks that exchange records
  const exchange::RecordRoute route_;

  Buffer residuals_;
  Buffer others_;  // those after this step, or before it: see settle()
  Buffer means_;   // of this rank's shard

  // ---- the window
  exchange::Backward backward_;
  bool adds_up_ = false;      // into residuals, one backward after the other
  bool is_encoded_ = true;    // what was added up
  bool has_changed_ = false;  // residuals, or those that come after
  View sums_;                 // whole gradients ...
  std::vector<std::size_t> waiting_;  // ... whose buckets leave in finish()
  DType dtype_ = DType::kFloat32;
  std::vector<Buffer> filling_;  // per bucket: gradients one by one
  std::vector<Buffer> free_;
  std::vector<Slot> slots_;
  std::deque<std::size_t> sent_;  // of the slots, in their order
};

}  // namespace thinwire::zero
