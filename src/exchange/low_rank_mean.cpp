// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_rank_mean.h"

#include <algorithm>

#include "core/require.h"
#include "exchange/checks.h"
#include "exchange/codec/codec.h"
#include "exchange/units/low_rank_steps.h"
#include "thinwire/kernels/low_rank.h"

namespace thinwire::exchange {

void LowRankMeanOptions::validate() const {
  require(low_rank >= 1 &&
              static_cast<std::size_t>(low_rank) <= kernels::kMostLowRank,
          "low_rank", "in [1, 64]", low_rank);
  require(first_steps >= 0, "first_steps", ">= 0", first_steps);
  require_bits("first_bits", first_bits);
}

std::size_t MatrixShape::rank(int low_rank) const noexcept {
  const std::size_t r =
      std::min({static_cast<std::size_t>(low_rank), rows, columns});
  return 2 * r * (rows + columns) < rows * columns ? r : 0;
}

LowRankMean::LowRankMean(comm::Communicator& comm, ThreadPool& pool,
                         std::span<const MatrixShape> shapes,
                         const LowRankMeanOptions& options,
                         const comm::HostGroups* groups) {
  require_groups(comm, groups);
  options.validate();
  steps_ = std::make_unique<LowRankSteps>(Route{comm, groups}, pool, shapes,
                                          options, Accepts::kParts);
}

LowRankMean::~LowRankMean() = default;

std::vector<bool> LowRankMean::begin(const Part& part) {
  return steps_->begin(part);
}

std::vector<bool> LowRankMean::finish() { return steps_->finish(); }

bool LowRankMean::average(const Part& part) {
  steps_->require_idle("average()");
  const std::vector<bool> completed = begin(part);
  return completed.empty() ? finish().front() : completed.front();
}

std::size_t LowRankMean::bytes_per_pass() const {
  return steps_->bytes_per_pass();
}

double LowRankMean::wait_seconds() const { return steps_->wait_seconds(); }

Buffer LowRankMean::worker_error() const {
  return steps_->copy_of_worker_error();
}

Buffer LowRankMean::server_error() const {
  return steps_->residuals().server_error();
}

ConstView LowRankMean::factors() const noexcept { return steps_->factors(); }

std::span<const std::uint64_t> LowRankMean::generators() const noexcept {
  return steps_->generators();
}

std::int64_t LowRankMean::passes() const noexcept { return steps_->passes(); }

void LowRankMean::load(const Saved& saved) { steps_->load(saved); }

}  // namespace thinwire::exchange
