// SPDX-License-Identifier: Apache-2.0
#include "exchange/low_bit_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "exchange/checks.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange {

namespace {

using Piece = LowBitReduceScatter::Piece;

void require_piece(const Piece& piece, int ranks, std::size_t residual_size) {
  require(piece.owner >= 0 && piece.owner < ranks, "Piece.owner",
          fmt::format("in [0, {})", ranks), piece.owner);
  require(piece.size <= residual_size &&
              piece.residual <= residual_size - piece.size,
          "Piece.residual",
          fmt::format("at most {}",
                      residual_size - std::min(piece.size, residual_size)),
          piece.residual);
}

// A block and the position of its result.
struct Placed {
  Block block;
  std::size_t to = 0;
};

// Cuts pieces into blocks, rank by rank.
std::vector<std::vector<Placed>> cut(std::span<const Piece> pieces, int ranks) {
  std::vector<std::vector<Placed>> of_rank(static_cast<std::size_t>(ranks));
  for (const Piece& piece : pieces)
    for (std::size_t at = 0; at < piece.size; at += kernels::kMostSummed) {
      const std::size_t size = std::min(kernels::kMostSummed, piece.size - at);
      of_rank[static_cast<std::size_t>(piece.owner)].push_back(
          {{{piece.from + at, size}, {piece.residual + at, size}, piece.owner},
           piece.to + at});
    }
  return of_rank;
}

}  // namespace

LowBitPieces::LowBitPieces(comm::Communicator& comm, ThreadPool& pool,
                           std::span<const Piece> pieces, int bits,
                           View residual,
                           const std::shared_ptr<PipelineMemory>& memory)
    : comm_(comm), codec_(codec_of(bits)) {
  std::size_t elements = 0;
  for (const Piece& piece : pieces) {
    require_piece(piece, comm.size(), residual.size());
    elements += piece.size;
    gradient_size_ = std::max(gradient_size_, piece.from + piece.size);
    if (piece.owner == comm.rank())
      result_size_ = std::max(result_size_, piece.to + piece.size);
  }
  const std::size_t each = std::max<std::size_t>(
      1, bucket_rule(elements, comm.size(), bits) /
             static_cast<std::size_t>(comm.size()) / kernels::kMostSummed);
  const auto of_rank = cut(pieces, comm.size());
  std::size_t most = 0;
  for (const auto& blocks : of_rank) most = std::max(most, blocks.size());
  std::vector<std::vector<Block>> buckets;
  for (std::size_t begin = 0; begin < most; begin += each) {
    buckets.emplace_back();
    for (const auto& blocks : of_rank)
      for (std::size_t k = begin; k < std::min(begin + each, blocks.size());
           ++k) {
        buckets.back().push_back(blocks[k].block);
        to_.push_back(blocks[k].to);
      }
  }
  layout_ = BlockLayout::of_blocks(std::move(buckets), comm.size());
  std::vector<Range> at;
  for (const Block& block : layout_.blocks()) at.push_back(block.residual);
  exchange_ = std::make_unique<LowBitExchange>(
      Route{comm}, pool, layout_, codec_,
      Pipeline::Options{.direction = Direction::kUp, .memory = memory},
      Residuals(ResidualSide(residual, std::move(at)), ResidualSide()));
}

void LowBitPieces::check(ConstView gradient, View result,
                         double loss_scale) const {
  require(gradient.size() >= gradient_size_, "gradient",
          fmt::format("of at least {} elements", gradient_size_),
          gradient.size());
  require(result.size() >= result_size_, "result",
          fmt::format("of at least {} elements", result_size_), result.size());
  require_loss_scale("loss_scale", loss_scale);
  require_float("gradient", gradient.dtype());
  require_float("result", result.dtype());
}

bool LowBitPieces::average(ConstView gradient, View result, double loss_scale) {
  if (comm_.size() == 1) {
    copy(gradient, result);
    return true;
  }
  try {
    exchange_->begin(
        [&](std::size_t b) {
          const Range& at = layout_.blocks()[b].values;
          return gradient.subview(at.offset, at.size);
        },
        static_cast<float>(1 / loss_scale));
    exchange_->write_to(
        {.values = result, .scale = static_cast<float>(loss_scale), .to = to_});
    exchange_->ready_all();
    return exchange_->finish();
  } catch (...) {
    exchange_->drop();
    throw;
  }
}

void LowBitPieces::copy(ConstView gradient, View result) const {
  for (std::size_t b = 0; b < to_.size(); ++b) {
    const Range& at = layout_.blocks()[b].values;
    kernels::convert(gradient.subview(at.offset, at.size),
                     result.subview(to_[b], at.size));
  }
}

std::size_t LowBitPieces::bytes_per_pass() const {
  std::size_t bytes = 0;
  for (const Block& block : layout_.blocks())
    if (block.server != comm_.rank())
      bytes += codec_.record_bytes(block.values.size);
  return bytes;
}

}  // namespace thinwire::exchange
