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
///
///   worker   c = g * r + e;  (q, s) = quantize(c);  e = c - s q
///            all-to-all: every block's (q, s) to the rank that gets it
///   result   mean over ranks of s q, in rank order, * loss scale
///
/// This is the first half of LowBitMean. Results stay where they are formed, so
/// they are not rounded a second time, and a rank sends
///   (W-1)/W (n bits / 8 + 4 scales)
/// bytes. A block has at most 1024 elements of one piece.
class LowBitReduceScatter {
 public:
  /// Neighbouring elements of a part's gradient that one rank gets.
  struct Piece {
    std::size_t from = 0;      ///< First element in the gradient.
    std::size_t to = 0;        ///< First element in the owner's result.
    std::size_t residual = 0;  ///< First element in the residual.
    std::size_t size = 0;
    int owner = 0;  ///< Rank, in [0, comm.size()).
  };

  /// Divides the pieces of all parts into blocks. Local. `residual_size` is the
  /// number of elements of the residual. All ranks pass the same pieces, and no
  /// two of them share elements. `comm` and `pool` must outlive this object.
  /// Throws Error(kInvalidArgument) for an option out of range, and for a piece
  /// whose owner is no rank or that exceeds the residual. It holds these bytes
  /// per element:
  ///   4 or 2       residual
  /// and records of two buckets, this rank's and those of other ranks.
  LowBitReduceScatter(comm::Communicator& comm, ThreadPool& pool,
                      std::size_t residual_size,
                      std::span<const std::vector<Piece>> parts,
                      const LowBitMeanOptions& options);
  ~LowBitReduceScatter();

  /// Averages a part: writes this rank's pieces to `result`, and leaves its
  /// other elements as they are. Both are fp32, fp16 or bf16. Collective, done
  /// on return: all ranks pass the parts in the same order. Returns whether
  /// this rank's result is finite.
  ///
  /// If a rank's block is not finite, the result is NaN in it, and that rank's
  /// residual of it stays. In other blocks, values beyond the range of the
  /// result's type become its largest finite one. A single rank copies its
  /// pieces, rounded to the result's type alone, and returns true. Throws
  /// Error(kInvalidArgument) before anything is sent.
  bool average(std::size_t part, ConstView gradient, View result,
               double loss_scale = 1);

  /// Returns the bytes that this rank sends to others for every part once.
  [[nodiscard]] std::size_t bytes_per_pass() const noexcept;
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Returns this rank's residual.
  [[nodiscard]] ConstView error() const noexcept;
  /// Sets the residual. Local. Throws Error(kCorruptCheckpoint) for another
  /// size or type.
  void load_error(ConstView error);

 private:
  Buffer residual_;
  std::vector<std::unique_ptr<LowBitPieces>> parts_;
};

}  // namespace thinwire::exchange
