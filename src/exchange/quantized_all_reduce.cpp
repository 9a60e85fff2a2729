// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/quantized_all_reduce.h"

#include <algorithm>
#include <utility>

#include "exchange/checks.h"
#include "exchange/records/quantized_records.h"
#include "exchange/records/two_phase_exchange.h"
#include "exchange/residuals.h"
#include "thinwire/core/error.h"

namespace thinwire::exchange {

struct QuantizedAllReduce::Impl {
  Impl(comm::Communicator& c, ThreadPool& pool, std::span<const Range> units,
       const QuantizedAllReduceOptions& o, const comm::HostGroups* groups)
      : comm(c),
        options(o),
        layout(units, o.blocks),
        exchange(c, groups, pool, layout, /*keeps_previous=*/false),
        residuals(layout, exchange.places(), o.residual_dtype) {}

  comm::Communicator& comm;
  QuantizedAllReduceOptions options;
  BlockLayout layout;
  TwoPhaseExchange exchange;
  Residuals residuals;

  void begin(Values values, float factor) {
    const auto sum = [](const KeptResidual& kept) {
      return kernels::QuantizedSum{.residual = kept.values,
                                   .error = kept.values};
    };
    exchange.begin(quantized_steps(
        exchange, options.blocks.bits,
        {.worker =
             [this, sum, values = std::move(values), factor](std::size_t b) {
               kernels::QuantizedSum own = sum(residuals.worker.kept(b));
               own.values = values(b);
               own.factor = factor;
               return own;
             },
         .server = [this, sum](
                       std::size_t b) { return sum(residuals.server.kept(b)); },
         .deliver = {}}));
  }

  void read(std::size_t b, float* mean) const {
    (void)read_quantized(exchange, options.blocks.bits, b,
                         {mean, layout.blocks()[b].values.size});
  }
};

QuantizedAllReduce::QuantizedAllReduce(comm::Communicator& comm,
                                       ThreadPool& pool,
                                       std::span<const Range> units,
                                       const QuantizedAllReduceOptions& options,
                                       const comm::HostGroups* groups) {
  require_options(comm, options.blocks, options.residual_dtype);
  require_groups(comm, groups);
  if (options.blocks.bits == 1)
    throw Error(ErrorCode::kInvalidArgument,
                "BlockOptions.bits must be 4 or 8 for a "
                "QuantizedAllReduce, got 1");
  impl_ = std::make_unique<Impl>(comm, pool, units, options, groups);
}

QuantizedAllReduce::~QuantizedAllReduce() = default;

int QuantizedAllReduce::all_reduce(View values) {
  const std::span<float> x = values.as<float>();
  const BlockLayout& layout = impl_->layout;
  require_inside(layout, x.size());
  if (impl_->comm.size() == 1) return -1;
  if (impl_->options.checks_finite) {
    const int rank =
        find_nonfinite(impl_->comm, layout, impl_->exchange.places(), x);
    if (rank >= 0) return rank;
  }
  impl_->begin(
      [&](std::size_t b) {
        const Range& at = layout.blocks()[b].values;
        return values.subview(at.offset, at.size);
      },
      1);
  for (std::size_t k = 0; k < layout.buckets().size(); ++k) add(k);
  finish();
  for (std::size_t b = 0; b < layout.blocks().size(); ++b)
    read(b, &x[layout.blocks()[b].values.offset]);
  return -1;
}

void QuantizedAllReduce::begin(Values values, float factor) {
  impl_->begin(std::move(values), factor);
}

bool QuantizedAllReduce::has_begun() const noexcept {
  return impl_->exchange.has_begun();
}

void QuantizedAllReduce::add(std::size_t bucket) {
  impl_->exchange.add(bucket);
}

void QuantizedAllReduce::finish() { impl_->exchange.finish(); }

void QuantizedAllReduce::abandon() noexcept {
  impl_->exchange.abandon();
  clear_errors();
}

void QuantizedAllReduce::read(std::size_t block, float* mean) const {
  impl_->read(block, mean);
}

const BlockLayout& QuantizedAllReduce::layout() const noexcept {
  return impl_->layout;
}

double QuantizedAllReduce::wait_seconds() const noexcept {
  return impl_->exchange.wait_seconds();
}

ConstView QuantizedAllReduce::worker_error() const noexcept {
  return std::as_const(impl_->residuals.worker.values).view();
}

ConstView QuantizedAllReduce::server_error() const noexcept {
  return std::as_const(impl_->residuals.server.values).view();
}

void QuantizedAllReduce::clear_errors() noexcept { impl_->residuals.clear(); }

void QuantizedAllReduce::load_errors(ConstView worker, ConstView server) {
  impl_->residuals.load(worker, server);
}

void QuantizedAllReduce::take_errors(Buffer&& worker, Buffer&& server) {
  impl_->residuals.take(std::move(worker), std::move(server));
}

std::pair<Buffer, Buffer> QuantizedAllReduce::release_errors() {
  return {std::move(impl_->residuals.worker.values),
          std::move(impl_->residuals.server.values)};
}

}  // namespace thinwire::exchange
