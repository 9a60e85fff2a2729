// SPDX-License-Identifier: Apache-2.0
#include "compress/residuals.h"

#include <fmt/format.h>

#include <cstring>

#include "core/set_to_zero.h"
#include "thinwire/core/error.h"

namespace thinwire::compress {

namespace {

void require_fit(ConstView given, const Buffer& own, const char* name) {
  if (given.dtype() != own.dtype() || given.size() != own.size())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("state array '{}' must be {} of {} elements (residuals fit "
                    "the same ranks, bucket size and dtype), got {} of {}",
                    name, to_string(own.dtype()), own.size(),
                    to_string(given.dtype()), given.size()));
}

void require_block(const BlockLayout& layout, std::size_t block) {
  if (block >= layout.blocks().size())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("block must be in [0, {}), got {}",
                            layout.blocks().size(), block));
}

void add(Residual& error, const float* values, float weight,
         const std::uint32_t* active, std::size_t size) {
  float* const e = error.floats();
  for (std::size_t i = 0; i < size; ++i)
    if (active == nullptr || (active[i / 32] >> (i % 32) & 1u) != 0)
      e[i] += weight * values[i];
  error.store();
}

}  // namespace

Residuals::Residuals(const BlockLayout& layout, int rank, DType dtype)
    : layout_(&layout), rank_(rank) {
  server_offset_.assign(layout.blocks().size(), 0);
  std::size_t served = 0;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    if (layout.blocks()[b].server != rank) continue;
    server_offset_[b] = served;
    served += layout.blocks()[b].residual.size;
  }
  worker_ = Buffer(layout.residual_size(), dtype);
  server_ = Buffer(served, dtype);
}

void Residuals::add_to_worker(std::size_t block, const float* values,
                              float weight, const ActiveMask& active) {
  require_block(*layout_, block);
  Residual error = worker(block);
  add(error, values, weight, active.words(*layout_, block),
      layout_->blocks()[block].values.size);
}

void Residuals::add_to_server(std::size_t block, const float* values,
                              float weight, const ActiveMask& active) {
  require_block(*layout_, block);
  const Block& b = layout_->blocks()[block];
  if (b.server != rank_)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("block must be one that rank {} serves, got {} of "
                            "rank {}",
                            rank_, block, b.server));
  Residual error = server(block);
  add(error, values, weight, active.words(*layout_, block), b.values.size);
}

void Residuals::clear() noexcept {
  for (Buffer* error : {&worker_, &server_}) set_to_zero(error->view());
}

void Residuals::load(ConstView worker, ConstView server) {
  require_fit(worker, worker_, "worker_error");
  require_fit(server, server_, "server_error");
  if (worker.bytes() != 0)
    std::memcpy(worker_.data(), worker.data(), worker.bytes());
  if (server.bytes() != 0)
    std::memcpy(server_.data(), server.data(), server.bytes());
}

}  // namespace thinwire::compress
