// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/low_rank_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "thinwire/core/error.h"

namespace thinwire::exchange {

namespace {

std::vector<std::size_t> sizes_of(std::span<const MatrixShape> shapes) {
  std::vector<std::size_t> sizes;
  for (const MatrixShape& shape : shapes) sizes.push_back(shape.size());
  return sizes;
}

// Returns, for each unit, the index of the rank in each host that encodes it.
// Distributes the largest units first, each to the rank with the smallest load.
// All indices are 0 if flat.
std::vector<std::size_t> dealt_by_size(const Route& route,
                                       std::span<const MatrixShape> shapes) {
  std::vector<std::size_t> dealt(shapes.size());
  if (route.groups == nullptr) return dealt;
  std::vector<std::size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t k) { return shapes[k].size(); });
  std::vector<std::size_t> load(
      static_cast<std::size_t>(route.groups->inside->size()));
  for (const std::size_t unit : order) {
    const auto least = std::ranges::min_element(load);
    *least += shapes[unit].size();
    dealt[unit] = static_cast<std::size_t>(least - load.begin());
  }
  return dealt;
}

}  // namespace

LowRankSteps::LowRankSteps(const Route& route, ThreadPool& pool,
                           std::span<const MatrixShape> shapes,
                           const LowRankMeanOptions& options, Accepts accepts)
    : options_(options),
      accepts_(accepts),
      residuals_(route, sizes_of(shapes), DType::kFloat32,
                 dealt_by_size(route, shapes)),
      first_(route, pool, residuals_, options.first_bits, accepts),
      low_rank_(route, pool, residuals_, shapes, options.low_rank, accepts),
      seen_(shapes.size()) {}

std::vector<bool> LowRankSteps::begin(const UnitPart& part) {
  now().check(part);
  std::vector<bool> completed;
  if (accepts_ == Accepts::kParts && starts_pass(part)) {
    completed = finish();
    end_pass();
  }
  for (const std::size_t unit : part.units) seen_[unit] = true;
  has_begun_ = true;
  const std::vector<bool> more = noted(now().begin(part));
  completed.insert(completed.end(), more.begin(), more.end());
  return completed;
}

bool LowRankSteps::starts_pass(const UnitPart& part) const {
  return std::ranges::any_of(part.units,
                             [this](std::size_t unit) { return seen_[unit]; });
}

std::vector<bool> LowRankSteps::finish() { return noted(now().finish()); }

std::vector<bool> LowRankSteps::noted(std::vector<bool> completed) {
  is_finite_ = is_finite_ && std::ranges::all_of(completed, std::identity());
  return completed;
}

void LowRankSteps::end_step(bool counts) {
  now().end_step(counts);
  is_finite_ = counts;
  end_pass();
}

void LowRankSteps::end_pass() {
  if (has_begun_ && is_finite_ && is_first() &&
      ++passes_ == options_.first_steps)
    low_rank_.inherit();
  forget_pass();
}

void LowRankSteps::forget_pass() {
  seen_.assign(seen_.size(), false);
  is_finite_ = true;
  has_begun_ = false;
}

void LowRankSteps::drop() noexcept {
  now().drop();
  is_finite_ = false;
}

void LowRankSteps::require_idle(std::string_view call) const {
  first_.require_idle(call);
  low_rank_.require_idle(call);
}

double LowRankSteps::wait_seconds() const {
  return first_.wait_seconds() + low_rank_.wait_seconds();
}

std::size_t LowRankSteps::bytes_per_pass() const {
  return first_bits() != 0 ? first_.bytes_per_pass()
                           : low_rank_.bytes_per_pass();
}

int LowRankSteps::first_bits() const noexcept {
  return passes() < options_.first_steps ? options_.first_bits : 0;
}

std::int64_t LowRankSteps::passes() const noexcept {
  const bool one_more = has_begun_ && is_finite_ && is_first();
  return passes_ + (one_more ? 1 : 0);
}

// A state may have been saved after the last first pass and before the next
// pass, and so before inherit(). Calling inherit() twice changes nothing.
void LowRankSteps::load(const LowRankMean::Saved& saved) {
  require_idle("load()");
  if (saved.passes < 0)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the passes must be >= 0, got {}", saved.passes));
  low_rank_.check(saved.factors, saved.generators);
  static_cast<void>(low_rank_.worker_error());  // allocates the memory
  residuals_.load(saved.worker, saved.server);
  low_rank_.load(saved.factors, saved.generators);
  passes_ = std::min(saved.passes, options_.first_steps);
  if (!is_first()) low_rank_.inherit();
  forget_pass();
}

}  // namespace thinwire::exchange
