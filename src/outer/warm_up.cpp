// SPDX-License-Identifier: Apache-2.0
#include "outer/warm_up.h"

#include <numeric>
#include <utility>
#include <vector>

#include "optim/saved_state.h"
#include "thinwire/exchange/bucket_rule.h"

namespace thinwire::outer {

namespace {

constexpr const char* kWorkerError = "warmup_worker_error";
constexpr const char* kServerError = "warmup_server_error";

}  // namespace

WarmUp::WarmUp(comm::Communicator& comm, ThreadPool& pool,
               const ParameterLayout& layout, int bits,
               std::size_t bucket_elements)
    : comm_(comm),
      pool_(pool),
      layout_(layout),
      units_(layout.parameters().size()),
      bits_(comm.size() == 1 ? 0 : bits) {
  std::iota(units_.begin(), units_.end(), std::size_t{0});
  if (bits_ == 0)  // otherwise the first average makes few_bits_
    exact_ = std::make_unique<exchange::ExactAverage>(
        comm_, pool_, layout_.size(),
        exchange::bucket_elements(bucket_elements, layout.size(), comm.hosts(),
                                  exchange::kExactBits));
}

std::unique_ptr<exchange::LowBitMean> WarmUp::make_few_bits() const {
  std::vector<std::size_t> sizes;
  for (const Parameter& p : layout_.parameters()) sizes.push_back(p.size);
  return std::make_unique<exchange::LowBitMean>(
      comm_, pool_, sizes, exchange::LowBitMeanOptions{.bits = bits_});
}

double WarmUp::average(View grads, double loss_scale,
                       exchange::WaitMeter& meter) {
  if (exact_) {
    exact_->complete(grads, meter);
    return exchange::sum_divisor(comm_, grads.dtype());
  }
  if (!few_bits_) few_bits_ = make_few_bits();
  // A mean that is not finite makes all values NaN, which the step then sees.
  meter.compressed(*few_bits_, [&](exchange::LowBitMean& mean) {
    static_cast<void>(mean.average(
        {.values = grads, .units = units_, .loss_scale = loss_scale}));
  });
  return 1;
}

// A server's residual is 0 on all other ranks.
void WarmUp::add_to(optim::State& state) const {
  if (!few_bits_) return;
  const std::vector<Range> whole = {{0, layout_.size()}};
  state.add_elements(kWorkerError, optim::Sharing::kMean, whole,
                     few_bits_->worker_error());
  Buffer server = few_bits_->server_error();
  optim::StateArray& added = state.add_elements(
      kServerError, optim::Sharing::kMean, whole, std::as_const(server).view());
  added.read = optim::StateArray::from(std::move(server));
}

optim::Adoption WarmUp::adopt(StateDict& state, std::int64_t saved_world) {
  const auto made = std::make_shared<std::unique_ptr<exchange::LowBitMean>>();
  if (!exact_ && state.has_array(kWorkerError)) {
    *made = make_few_bits();
    const auto take = [&](const char* name) {
      return optim::take_floats(state, name, DType::kFloat32, layout_.size());
    };
    const Buffer worker = take(kWorkerError);
    Buffer server = take(kServerError);
    // Other ranks get the ranks' mean, of which all but one rank have 0.
    if (saved_world != comm_.size())
      for (float& value : server.as<float>())
        value *= static_cast<float>(saved_world);
    (*made)->load_errors(worker.view(), std::as_const(server).view());
  }
  return [this, made] { few_bits_ = std::move(*made); };
}

}  // namespace thinwire::outer
