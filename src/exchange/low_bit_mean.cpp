// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_mean.h"

#include "exchange/checks.h"
#include "exchange/units/low_bit_units.h"

namespace thinwire::exchange {

LowBitMean::LowBitMean(comm::Communicator& comm, ThreadPool& pool,
                       std::span<const std::size_t> sizes,
                       const LowBitMeanOptions& options,
                       const comm::HostGroups* groups) {
  require_groups(comm, groups);
  require_options(options);
  const Route route{comm, groups};
  residuals_ =
      std::make_unique<UnitResiduals>(route, sizes, options.residual_dtype);
  units_ = std::make_unique<LowBitUnits>(route, pool, *residuals_, options.bits,
                                         Accepts::kParts);
}

LowBitMean::~LowBitMean() = default;

std::vector<bool> LowBitMean::begin(const Part& part) {
  return units_->begin(part);
}

std::vector<bool> LowBitMean::finish() { return units_->finish(); }

bool LowBitMean::average(const Part& part) {
  units_->require_idle("average()");
  const std::vector<bool> completed = begin(part);
  return completed.empty() ? finish().front() : completed.front();
}

std::size_t LowBitMean::bytes_per_pass() const noexcept {
  return units_->bytes_per_pass();
}

double LowBitMean::wait_seconds() const noexcept {
  return units_->wait_seconds();
}

ConstView LowBitMean::worker_error() const noexcept {
  return residuals_->worker();
}

Buffer LowBitMean::server_error() const { return residuals_->server_error(); }

std::vector<Range> LowBitMean::encoded() const { return residuals_->encoded(); }

std::vector<Range> LowBitMean::served() const { return residuals_->served(); }

void LowBitMean::load_errors(ConstView worker, ConstView server) {
  units_->require_idle("load_errors()");
  residuals_->load(worker, server);
}

}  // namespace thinwire::exchange
