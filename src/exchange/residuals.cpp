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

}  // namespace

Residuals::Side::Side(const BlockLayout& layout, std::size_t begin,
                      std::size_t end, DType dtype)
    : layout_(&layout), scales_(layout.blocks().size()) {
  std::size_t size = 0;
  for (const Block& block : layout.blocks()) {
    const auto server = static_cast<std::size_t>(block.server);
    const bool is_own = begin <= server && server < end;
    ranges_.push_back({size, is_own ? block.residual.size : 0});
    size = ranges_.back().end();
  }
  values = Buffer(size, dtype);
}

// The signs were sent long ago; only what they left counts here.
void Residuals::Side::form_error(std::size_t block,
                                 const std::uint32_t* active) {
  const KeptResidual own = kept(block);
  if (own.scale == 0) return;
  const auto c = own.values.as<float>();
  // A block with a scale of its own is not longer.
  std::array<std::uint32_t, kernels::sign_words(1024)> signs;
  kernels::sign_split(c.data(), own.scale, signs.data(), active, c.size());
  own.scale = 0;
}

void Residuals::Side::form_errors(const ActiveMask& active) {
  for (std::size_t b = 0; b < ranges_.size(); ++b)
    form_error(b, active.words(*layout_, b));
}

void Residuals::Side::form_errors_between(const ActiveMask& before,
                                          const ActiveMask& after) {
  for (std::size_t b = 0; b < ranges_.size(); ++b) {
    const std::uint32_t* const active = before.words(*layout_, b);
    if (active != nullptr || after.words(*layout_, b) != nullptr)
      form_error(b, active);
  }
}

void Residuals::Side::add(std::size_t block, const float* from, float weight,
                          const ActiveMask& active) {
  const std::uint32_t* const words = active.words(*layout_, block);
  form_error(block, words);
  Residual error(values.view(), ranges_[block]);
  for (std::size_t i = 0; i < ranges_[block].size; ++i)
    if (is_active(words, i)) error.floats()[i] += weight * from[i];
  error.store();
}

void Residuals::Side::copy(std::size_t block, const Side& from) {
  const Range& at = ranges_[block];
  const ConstView given = from.values.view().subview(at.offset, at.size);
  if (given.bytes() != 0)
    std::memcpy(kept(block).values.data(), given.data(), given.bytes());
  scales_[block] = from.scales_[block];
}

void Residuals::Side::now_errors() noexcept {
  std::ranges::fill(scales_, 0.0f);
}

void Residuals::clear() noexcept {
  for (Side* side : {&worker, &server}) {
    set_to_zero(side->values.view());
    side->now_errors();
  }
}

void Residuals::load(ConstView worker_error, ConstView server_error) {
  const auto copy = [](ConstView given) {
    Buffer copied(given.size(), given.dtype(), Fill::kNone);
    if (given.bytes() != 0)
      std::memcpy(copied.data(), given.data(), given.bytes());
    return copied;
  };
  take(copy(worker_error), copy(server_error));
}

void Residuals::take(Buffer&& worker_error, Buffer&& server_error) {
  require_fit(worker_error.view(), worker.values, "worker_error");
  require_fit(server_error.view(), server.values, "server_error");
  worker.values = std::move(worker_error);
  server.values = std::move(server_error);
  worker.now_errors();
  server.now_errors();
}

}  // namespace thinwire::exchange
