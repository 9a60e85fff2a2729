// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "exchange/low_bit_exchange.h"
#include "thinwire/exchange/low_bit_reduce_scatter.h"

namespace thinwire::exchange {

/// One part of LowBitReduceScatter: the pieces that ranks receive, and the path
/// of their records. A bucket has about the same number of blocks for each
/// rank, so that all ranks send and receive all the time.
class LowBitPieces {
 public:
  using Piece = LowBitReduceScatter::Piece;

  /// `residual` holds the residuals of all parts, and the parts share `memory`.
  /// Throws Error(kInvalidArgument) if a piece's owner is not a rank or a piece
  /// exceeds the residual.
  LowBitPieces(comm::Communicator& comm, ThreadPool& pool,
               std::span<const Piece> pieces, int bits, View residual,
               const std::shared_ptr<PipelineMemory>& memory);

  /// Throws Error(kInvalidArgument) unless the part can be averaged.
  void check(ConstView gradient, View result, double loss_scale) const;
  /// Implements LowBitReduceScatter::average().
  bool average(ConstView gradient, View result, double loss_scale);

  [[nodiscard]] std::size_t bytes_per_pass() const;
  [[nodiscard]] double wait_seconds() const {
    return exchange_->wait_seconds();
  }

 private:
  void copy(ConstView gradient, View result) const;

  comm::Communicator& comm_;
  const ValueCodec& codec_;
  std::size_t gradient_size_ = 0;  // smallest valid size
  std::size_t result_size_ = 0;    // smallest valid size
  BlockLayout layout_;
  std::vector<std::size_t> to_;  // offset of each block in its owner's result
  std::unique_ptr<LowBitExchange> exchange_;
};

}  // namespace thinwire::exchange
