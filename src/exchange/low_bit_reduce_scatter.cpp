// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_reduce_scatter.h"

#include <fmt/format.h>

#include <cstring>

#include "core/require.h"
#include "exchange/checks.h"
#include "exchange/low_bit_pieces.h"

namespace thinwire::exchange {

LowBitReduceScatter::LowBitReduceScatter(
    comm::Communicator& comm, ThreadPool& pool, std::size_t residual_size,
    std::span<const std::vector<Piece>> parts,
    const LowBitMeanOptions& options) {
  require_options(options);
  residual_ = Buffer(residual_size, options.residual_dtype);
  const auto memory = std::make_shared<PipelineMemory>();
  for (const auto& pieces : parts)
    parts_.push_back(std::make_unique<LowBitPieces>(
        comm, pool, pieces, options.bits, residual_.view(), memory));
}

LowBitReduceScatter::~LowBitReduceScatter() = default;

bool LowBitReduceScatter::average(std::size_t part, ConstView gradient,
                                  View result, double loss_scale) {
  require(part < parts_.size(), "part",
          fmt::format("in [0, {})", parts_.size()), part);
  parts_[part]->check(gradient, result, loss_scale);
  return parts_[part]->average(gradient, result, loss_scale);
}

std::size_t LowBitReduceScatter::bytes_per_pass() const noexcept {
  std::size_t bytes = 0;
  for (const auto& part : parts_) bytes += part->bytes_per_pass();
  return bytes;
}

double LowBitReduceScatter::wait_seconds() const noexcept {
  double seconds = 0;
  for (const auto& part : parts_) seconds += part->wait_seconds();
  return seconds;
}

ConstView LowBitReduceScatter::error() const noexcept {
  return residual_.view();
}

void LowBitReduceScatter::load_error(ConstView error) {
  require_residual("the residual", error, residual_.dtype(), residual_.size());
  if (!error.empty())
    std::memcpy(residual_.view().data(), error.data(), error.bytes());
}

}  // namespace thinwire::exchange
