// SPDX-License-Identifier: Apache-2.0
#include "exchange/residuals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/set_to_zero.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

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

// The signs have gone out long ago; here only what they left counts.
void form_error(KeptResidual kept, const std::uint32_t* active) {
  if (kept.scale == 0) return;
  const auto c = kept.values.as<float>();
  // As long as a block with a scale of its own can be.
  std::array<std::uint32_t, kernels::sign_words(1024)> signs;
  kernels::sign_split(c.data(), kept.scale, signs.data(), active, c.size());
  kept.scale = 0;
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

Residuals::Residuals(const BlockLayout& layout, const Places& places,
                     DType dtype)
    : layout_(&layout),
      places_(places),
      worker_offset_(layout.blocks().size()),
      server_offset_(layout.blocks().size()) {
  std::size_t encoded = 0;
  std::size_t served = 0;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    const Range& residual = layout.blocks()[b].residual;
    if (encodes(b)) {
      worker_offset_[b] = encoded;
      encoded += residual.size;
    }
    if (serves(b)) {
      server_offset_[b] = served;
      served += residual.size;
    }
  }
  worker_.values = Buffer(encoded, dtype);
  server_.values = Buffer(served, dtype);
  for (Side* side : {&worker_, &server_})
    side->scales.assign(layout.blocks().size(), 0.0f);
}

void Residuals::form_worker_errors(const ActiveMask& active) {
  for (std::size_t b = 0; b < layout_->blocks().size(); ++b)
    if (encodes(b)) form_error(kept_worker(b), active.words(*layout_, b));
}

void Residuals::form_server_errors(const ActiveMask& active) {
  for (std::size_t b = 0; b < layout_->blocks().size(); ++b)
    if (serves(b)) form_error(kept_server(b), active.words(*layout_, b));
}

void Residuals::form_errors_between(const ActiveMask& before,
                                    const ActiveMask& after) {
  for (std::size_t b = 0; b < layout_->blocks().size(); ++b) {
    const std::uint32_t* const active = before.words(*layout_, b);
    if (active == nullptr && after.words(*layout_, b) == nullptr) continue;
    if (encodes(b)) form_error(kept_worker(b), active);
    if (serves(b)) form_error(kept_server(b), active);
  }
}

void Residuals::add_to_worker(std::size_t block, const float* values,
                              float weight, const ActiveMask& active) {
  require_block(*layout_, block);
  if (!encodes(block))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("block must be one of this rank's piece, servers "
                            "[{}, {}), got {} of server {}",
                            places_.first, places_.end(), block,
                            layout_->blocks()[block].server));
  const std::uint32_t* const words = active.words(*layout_, block);
  form_error(kept_worker(block), words);
  Residual error = worker(block);
  add(error, values, weight, words, layout_->blocks()[block].values.size);
}

void Residuals::copy(Side& to, const Side& from, std::size_t block,
                     Range range) {
  const ConstView values = from.values.view().subview(range.offset, range.size);
  if (values.bytes() != 0)
    std::memcpy(to.kept(block, range).values.data(), values.data(),
                values.bytes());
  to.scales[block] = from.scales[block];
}

void Residuals::clear() noexcept {
  for (Side* side : {&worker_, &server_}) {
    set_to_zero(side->values.view());
    std::ranges::fill(side->scales, 0.0f);
  }
}

void Residuals::load(ConstView worker, ConstView server) {
  require_fit(worker, worker_.values, "worker_error");
  require_fit(server, server_.values, "server_error");
  for (auto [side, given] : {std::pair(&worker_, worker), {&server_, server}}) {
    if (given.bytes() != 0)
      std::memcpy(side->values.data(), given.data(), given.bytes());
    std::ranges::fill(side->scales, 0.0f);
  }
}

void Residuals::take(Buffer&& worker, Buffer&& server) {
  require_fit(worker.view(), worker_.values, "worker_error");
  require_fit(server.view(), server_.values, "server_error");
  worker_.values = std::move(worker);
  server_.values = std::move(server);
  for (Side* side : {&worker_, &server_}) std::ranges::fill(side->scales, 0.0f);
}

}  // namespace thinwire::exchange
