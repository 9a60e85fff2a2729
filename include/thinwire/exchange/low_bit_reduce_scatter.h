// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/low_bit_mean.h"

namespace thinwire::exchange {

class LowBitPieces;

/// Averages gradients in 4 or 8 bits with error feedback, and gives each rank
/// its own pieces of the average. Per block, with r = 1 / loss scale:
///   worker   c = g * r + e;  (q, s) = quantize(c);  e = c - s q
///            all-to-all: every block's (q, s) to the rank that gets it
///   result   mean over ranks of s q, in rank order, * loss scale
/// This is the first half of LowBitMean. Each rank keeps the results that it
/// computes, so they are not rounded a second time, and a rank sends
///   (W-1)/W (n bits / 8 + 4 scales)
/// bytes. A block has at most 1024 elements of one piece.
class LowBitReduceScatter {
 public:
  /// Adjacent elements of a part's gradient whose average one rank receives.
  struct Piece {
    std::size_t from = 0;      ///< First element in the gradient.
    std::size_t to = 0;        ///< First element in the owner's result.
    std::size_t residual = 0;  ///< First element in the residual.
    std::size_t size = 0;
    int owner = 0;  ///< Rank, in [0, comm.size()).
  };

  /// Divides the pieces of all parts into blocks. Local. `residual_size` is the
  /// number of elements of the residual. All ranks must pass the same pieces,
  /// which must not overlap. `comm` and `pool` must outlive this object. Throws
  /// Error(kInvalidArgument) if an option is out of range, if a piece's owner
  /// is not a rank, or if a piece exceeds the residual. Holds these bytes per
  /// element:
  ///   4 or 2       residual
  /// and records of two buckets, this rank's and those of other ranks.
  LowBitReduceScatter(comm::Communicator& comm, ThreadPool& pool,
                      std::size_t residual_size,
                      std::span<const std::vector<Piece>> parts,
                      const LowBitMeanOptions& options);
  ~LowBitReduceScatter();

  /// Averages a part. Writes this rank's pieces to `result` and leaves its
  /// other elements unchanged. Both arrays are fp32, fp16 or bf16. Collective
  /// and blocking: all ranks must pass the parts in the same order. Returns
  /// whether this rank's result is finite.
  ///
  /// If a rank's block is not finite, its result is NaN, and that rank keeps
  /// the block's residual unchanged. In other blocks, values beyond the range
  /// of the result's dtype become its largest finite value. A single rank only
  /// rounds its pieces to the result's dtype and returns true. Throws
  /// Error(kInvalidArgument) before anything is sent.
  bool average(std::size_t part, ConstView gradient, View result,
               double loss_scale = 1);

  /// Returns the number of bytes that this rank sends if every part is averaged
  /// once.
  [[nodiscard]] std::size_t bytes_per_pass() const noexcept;
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Returns this rank's residual.
  [[nodiscard]] ConstView error() const noexcept;
  /// Sets the residual. Local. Throws Error(kCorruptCheckpoint) for another
  /// size or dtype.
  void load_error(ConstView error);

 private:
  Buffer residual_;
  std::vector<std::unique_ptr<LowBitPieces>> parts_;
};

}  // namespace thinwire::exchange
