// SPDX-License-Identifier: Apache-2.0
#include "outer/warm_up.h"

#include <numeric>
#include <utility>
#include <vector>

#include "core/ranges.h"
#include "optim/saved_state.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

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
  // A mean that is not finite makes all values NaN, which the step then sees.
  meter.adding_waits_of(*few_bits_, [&](exchange::LowBitMean& mean) {
    static_cast<void>(mean.average(
        {.values = grads, .units = units_, .loss_scale = loss_scale}));
  });
  return 1;
}

void WarmUp::add_to(optim::State& state) const {
  if (!few_bits_) return;
  const auto add = [&](const char* name, optim::Sharing sharing,
                       std::vector<Range> ranges, ConstView residual) {
    Buffer own = packed(residual, ranges);
    optim::StateArray& added = state.add_elements(
        name, sharing, std::move(ranges), std::as_const(own).view());
    added.read = optim::StateArray::from(std::move(own));
  };
  add(kWorkerError, optim::Sharing::kMean, few_bits_->encoded(),
      few_bits_->worker_error());
  const Buffer server = few_bits_->server_error();
  add(kServerError, optim::Sharing::kSharded, few_bits_->served(),
      server.view());
}

optim::Adoption WarmUp::adopt(StateDict& state) {
  if (exact_) return [] {};
  const auto made =
      std::make_shared<std::unique_ptr<exchange::LowBitMean>>(make_few_bits());
  if (state.has_array(kWorkerError)) {
    const Buffer worker = unpacked(state, kWorkerError, (*made)->encoded());
    const Buffer server = unpacked(state, kServerError, (*made)->served());
    (*made)->load_errors(worker.view(), server.view());
  }
  return [this, made] { few_bits_ = std::move(*made); };
}

// Copies the elements of `ranges`, one after the other.
Buffer WarmUp::packed(ConstView values, std::span<const Range> ranges) {
  Buffer result = Buffer::of<float>(total_size(ranges));
  std::size_t done = 0;
  for (const Range& range : ranges) {
    kernels::convert(values.subview(range.offset, range.size),
                     result.view().subview(done, range.size));
    done += range.size;
  }
  return result;
}

// Returns all elements, 0 where the saved array has none.
Buffer WarmUp::unpacked(StateDict& state, const char* name,
                        std::span<const Range> ranges) const {
  const Buffer saved =
      optim::take_floats(state, name, DType::kFloat32, total_size(ranges));
  Buffer result = Buffer::of<float>(layout_.size());
  std::size_t done = 0;
  for (const Range& range : ranges) {
    kernels::convert(saved.view().subview(done, range.size),
                     result.view().subview(range.offset, range.size));
    done += range.size;
  }
  return result;
}

}  // namespace thinwire::outer
