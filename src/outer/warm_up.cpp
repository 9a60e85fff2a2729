// SPDX-License-Identifier: Apache-2.0
#include "outer/warm_up.h"

#include <numeric>
#include <utility>
#include <vector>

#include "thinwire/exchange/bucket_rule.h"

namespace thinwire::outer {

namespace {

constexpr const char* kWorkerError = "warmup_worker_error";
constexpr const char* kServerError = "warmup_server_error";

}  // namespace

WarmUp::WarmUp(comm::Communicator& comm, const comm::HostGroups* groups,
               ThreadPool& pool, const ParameterLayout& layout, int bits,
               std::size_t bucket_elements)
    : comm_(comm),
      groups_(groups),
      pool_(pool),
      layout_(layout),
      units_(layout.parameters().size()),
      bits_(comm.size() == 1 ? 0 : bits) {
  std::iota(units_.begin(), units_.end(), std::size_t{0});
  if (bits_ == 0)
    exact_ = std::make_unique<exchange::ExactAverage>(
        comm_, pool_, layout_.size(),
        exchange::bucket_elements(bucket_elements, layout.size(), comm.hosts(),
                                  exchange::kExactBits));
  else
    few_bits_ = make_few_bits();
}

std::unique_ptr<exchange::LowBitMean> WarmUp::make_few_bits() const {
  std::vector<std::size_t> sizes;
  for (const Parameter& p : layout_.parameters()) sizes.push_back(p.size);
  return std::make_unique<exchange::LowBitMean>(
      comm_, pool_, sizes, exchange::LowBitMeanOptions{.bits = bits_}, groups_);
}

double WarmUp::average(View grads, double loss_scale,
                       exchange::WaitMeter& meter) {
  if (exact_) {
    exact_->complete(grads, meter);
    return exchange::sum_divisor(comm_, grads.dtype());
  }
  // If the mean is not finite, all values become NaN, which the step detects.
  meter.adding_waits_of(*few_bits_, [&](exchange::LowBitMean& mean) {
    static_cast<void>(mean.average(
        {.values = grads, .units = units_, .loss_scale = loss_scale}));
  });
  return 1;
}

optim::UnitResidualParts WarmUp::parts_of(const exchange::LowBitMean& mean) {
  return {kWorkerError, kServerError, mean.encoded(), mean.served()};
}

void WarmUp::add_to(optim::State& state) const {
  if (!few_bits_) return;
  optim::add_unit_errors(state, parts_of(*few_bits_), few_bits_->worker_error(),
                         few_bits_->server_error().view());
}

optim::Adoption WarmUp::adopt(StateDict& state) {
  if (exact_) return [] {};
  const auto made =
      std::make_shared<std::unique_ptr<exchange::LowBitMean>>(make_few_bits());
  if (const auto saved =
          optim::take_unit_errors(state, parts_of(**made), layout_.size()))
    (*made)->load_errors(saved->worker.view(), saved->server.view());
  return [this, made] { few_bits_ = std::move(*made); };
}

}  // namespace thinwire::outer
