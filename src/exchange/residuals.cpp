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
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

namespace {

void require_fit(ConstView given, ConstView own, const char* name) {
  if (given.dtype() != own.dtype() || given.size() != own.size())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("state array '{}' must be {} of {} elements (residuals fit "
                    "the same ranks, bucket size and dtype), got {} of {}",
                    name, to_string(own.dtype()), own.size(),
                    to_string(given.dtype()), given.size()));
}

}  // namespace

ResidualSide::ResidualSide(const BlockLayout& layout, std::size_t begin,
                           std::size_t end, DType dtype, bool can_drop)
    : layout_(&layout), scales_(layout.blocks().size()), can_drop_(can_drop) {
  std::size_t size = 0;
  for (const Block& block : layout.blocks()) {
    const auto server = static_cast<std::size_t>(block.server);
    const bool is_own = begin <= server && server < end;
    at_.push_back({size, is_own ? block.residual.size : 0});
    size = at_.back().end();
  }
  own_ = Buffer(size, dtype);
  values_ = own_.view();
  if (!can_drop) return;
  own_fresh_ = Buffer(size, dtype);
  fresh_ = own_fresh_.view();
}

ResidualSide::ResidualSide(View values, std::vector<Range> at)
    : at_(std::move(at)), values_(values) {
  std::size_t size = 0;
  for (const Range& range : at_) {
    fresh_at_.push_back({size, range.size});
    size += range.size;
  }
}

void ResidualSide::write_to(Buffer& fresh) {
  const std::size_t size = fresh_at_.empty() ? 0 : fresh_at_.back().end();
  if (fresh.size() < size) fresh = Buffer(size, values_.dtype());
  fresh_ = fresh.view();
  can_drop_ = true;
}

// ---- a run

void ResidualSide::save_before() {
  if (!can_drop_) return;
  kernels::convert(values_, fresh_);
  is_saved_ = true;
}

void ResidualSide::keep(std::size_t block, ConstView error) const noexcept {
  std::memcpy(part(values_, at_, block).data(), error.data(), error.bytes());
}

void ResidualSide::keep_fresh(std::size_t block) const noexcept {
  if (at_[block].size != 0) keep(block, part(fresh_, fresh_at_, block));
}

void ResidualSide::accept() noexcept {
  if (writes_fresh()) swap_fresh();
  is_saved_ = false;
}

void ResidualSide::accept(ThreadPool& pool) {
  if (fresh_at_.empty()) return accept();
  pool.for_ranges(at_.size(), 16, [&](std::size_t b, std::size_t end) {
    for (; b < end; ++b) keep_fresh(b);
  });
}

bool ResidualSide::drop() noexcept {
  if (std::exchange(is_saved_, false)) swap_fresh();
  if (!can_drop_) clear();
  return !can_drop_;
}

void ResidualSide::swap_fresh() noexcept {
  if (!fresh_at_.empty()) {
    for (std::size_t b = 0; b < at_.size(); ++b) keep_fresh(b);
    return;
  }
  std::swap(own_, own_fresh_);
  std::swap(values_, fresh_);
}

// ---- between runs

// Replaces a block's c with the error that its signs left.
void ResidualSide::form_error(std::size_t block, const std::uint32_t* active) {
  if (scales_[block] == 0) return;
  const auto c = part(values_, at_, block).as<float>();
  // Only blocks of at most 1024 elements have separate scales.
  std::array<std::uint32_t, kernels::sign_words(1024)> signs;
  kernels::sign_split(c.data(), scales_[block], signs.data(), active, c.size());
  scales_[block] = 0;
}

void ResidualSide::form_errors(const ActiveMask& active) {
  for (std::size_t b = 0; b < at_.size(); ++b)
    form_error(b, active.words(*layout_, b));
}

void ResidualSide::form_errors_between(const ActiveMask& before,
                                       const ActiveMask& after) {
  for (std::size_t b = 0; b < at_.size(); ++b) {
    const std::uint32_t* const active = before.words(*layout_, b);
    if (active != nullptr || after.words(*layout_, b) != nullptr)
      form_error(b, active);
  }
}

void ResidualSide::add(std::size_t block, const float* from, float weight,
                       const ActiveMask& active) {
  const std::uint32_t* const words = active.words(*layout_, block);
  form_error(block, words);
  Residual error(values_, at_[block]);
  for (std::size_t i = 0; i < at_[block].size; ++i)
    if (is_active(words, i)) error.floats()[i] += weight * from[i];
  error.store();
}

void ResidualSide::set(Buffer&& values) noexcept {
  own_ = std::move(values);
  values_ = own_.view();
  std::ranges::fill(scales_, 0.0f);
}

void ResidualSide::clear() noexcept {
  set_to_zero(values_);
  std::ranges::fill(scales_, 0.0f);
}

// ---- both ways

void Residuals::accept() noexcept {
  worker.accept();
  server.accept();
}

void Residuals::accept(ThreadPool& pool) {
  worker.accept(pool);
  server.accept(pool);
}

void Residuals::drop() noexcept {
  worker.drop();
  server.drop();
}

void Residuals::clear() noexcept {
  worker.clear();
  server.clear();
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
  require_fit(worker_error.view(), worker.values(), "worker_error");
  require_fit(server_error.view(), server.values(), "server_error");
  worker.set(std::move(worker_error));
  server.set(std::move(server_error));
}

}  // namespace thinwire::exchange
