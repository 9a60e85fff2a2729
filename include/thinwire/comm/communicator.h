// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "thinwire/comm/transport.h"
#include "thinwire/comm/work.h"
#include "thinwire/core/view.h"

namespace thinwire::comm {

/// How all_reduce and reduce_scatter form their sums.
enum class Reduction {
  /// Rank 0's value first, then rank 1's, ...: all-to-all, add, all-gather. As
  /// many bytes as a ring, and the same bits on every backend.
  kRankOrder,
  /// The backend's own all-reduce where it has one.
  kNative,
};

struct CommunicatorOptions {
  /// How long one collective may take, > 0.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  Reduction reduction = Reduction::kRankOrder;
};

/// What this rank has handed to its transport since construction. kNative is
/// counted as if it were kRankOrder; barrier() and split() have no payload.
struct Counters {
  std::uint64_t bytes_sent = 0;   ///< Payload to other ranks, no headers.
  std::uint64_t collectives = 0;  ///< Calls below, whatever they are made of.
};

/// The ranks of one group, and collectives among them. Every call below is
/// collective: all ranks make the same calls in the same order with fitting
/// sizes. Collectives run one after the other on one thread per communicator,
/// so they go on while the caller computes: the `queue_` form returns at once,
/// the plain form waits. In a group of one every call is a local copy or
/// nothing.
///
/// Arguments are checked before anything is sent: Error(kInvalidArgument). A
/// lost, hung or disagreeing peer gives Error(kCommFailure) on every rank
/// within the time-out; after it the communicator may only be destroyed. A
/// communicator destroyed by an exception tells its peers.
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport,
                        const CommunicatorOptions& options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// "local", "mpi", ...
  [[nodiscard]] std::string_view backend() const noexcept;
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept;
  /// Of completed and queued collectives; split groups count for themselves.
  [[nodiscard]] Counters counters() const noexcept;

  /// In place: every rank gets the sum, the largest or the mean of all ranks'
  /// values, element by element. kFloat16 and kBFloat16 are added in float and
  /// rounded once. kMax of floats: a NaN on any rank gives NaN. kMean takes no
  /// integers; in a group of one it is the identity.
  void all_reduce(View data, ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_all_reduce(View data, ReduceOp op = ReduceOp::kSum);

  /// `output` gets this rank's piece of the reduced input, with the bits that
  /// all_reduce gives in rank order: input.size() == size() * output.size().
  /// `output` may be its own place in `input`. It may be kFloat32 where `input`
  /// is kFloat16 or kBFloat16: kSum and kMean are then left in float,
  /// unrounded.
  void reduce_scatter(ConstView input, View output,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          ReduceOp op = ReduceOp::kSum);

  /// The same with `counts[r]` elements for rank r, the same counts on all
  /// ranks; output.size() == counts[rank()]. Counts of 0 are fine.
  void reduce_scatter(ConstView input, View output,
                      std::span<const std::size_t> counts,
                      ReduceOp op = ReduceOp::kSum);
  [[nodiscard]] Work queue_reduce_scatter(ConstView input, View output,
                                          std::span<const std::size_t> counts,
                                          ReduceOp op = ReduceOp::kSum);

  /// output[r] = rank r's input; output.size() == size() * input.size().
  /// `input` may be its own place in `output`.
  void all_gather(ConstView input, View output);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output);

  /// The same with `counts[r]` elements from rank r; input.size() ==
  /// counts[rank()]. Counts of 0 are fine.
  void all_gather(ConstView input, View output,
                  std::span<const std::size_t> counts);
  [[nodiscard]] Work queue_all_gather(ConstView input, View output,
                                      std::span<const std::size_t> counts);

  /// Piece r of `input` goes to rank r, piece r of `output` comes from it; all
  /// pieces equal. They must not overlap.
  void all_to_all(ConstView input, View output);
  [[nodiscard]] Work queue_all_to_all(ConstView input, View output);

  /// The same with `send_counts[r]` elements to rank r and
  /// `receive_counts[r]` from it, which must be what r sends.
  void all_to_all(ConstView input, std::span<const std::size_t> send_counts,
                  View output, std::span<const std::size_t> receive_counts);
  [[nodiscard]] Work queue_all_to_all(
      ConstView input, std::span<const std::size_t> send_counts, View output,
      std::span<const std::size_t> receive_counts);

  /// Every rank gets root's values; root in [0, size()).
  void broadcast(View data, int root);
  [[nodiscard]] Work queue_broadcast(View data, int root);

  /// Returns when every rank has come here.
  void barrier();

  /// Local: returns when all that this rank has queued is done. Throws
  /// Error(kCommFailure) if some of it has failed.
  void finish_queued();
  /// Local: this rank cannot go on. What it has under way fails, and its peers
  /// get Error(kCommFailure) "rank R gave up: REASON" at their next exchange
  /// with it. From now on this object may only be destroyed. In a group of one
  /// there is nobody to tell, and nothing happens.
  void give_up(std::string_view reason) noexcept;

  /// The communicator of the ranks that give the same `color` (>= 0), ordered
  /// by `key`, then by rank, with the same options; null for a color below 0.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key = 0);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::comm
