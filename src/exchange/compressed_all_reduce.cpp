// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/compressed_all_reduce.h"

#include <utility>

#include "exchange/checks.h"
#include "exchange/sign_exchange.h"

namespace thinwire::exchange {

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, std::span<const Range> units,
    const CompressedAllReduceOptions& options, const comm::HostGroups* groups)
    : comm_(comm), options_(options) {
  require_options(comm, options.blocks, options.residual_dtype);
  require_groups(comm, groups);
  exchange_ = std::make_unique<SignExchange>(
      comm, groups, pool, BlockLayout(units, options.blocks),
      SignExchange::Options{.residual_dtype = options.residual_dtype});
}

CompressedAllReduce::~CompressedAllReduce() = default;

int CompressedAllReduce::all_reduce(View values) {
  const std::span<float> x = values.as<float>();
  require_inside(layout(), x.size());
  if (comm_.size() == 1 && !options_.compresses_alone) return -1;
  const int rank = find_nonfinite(comm_, layout(), exchange_->places(), x);
  if (rank >= 0) return rank;
  const auto blocks = layout().blocks();
  run(
      [&](std::size_t b) -> kernels::SignInput {
        return {.values = x.data() + blocks[b].values.offset};
      },
      [&](std::size_t b, kernels::Signs mean) {
        kernels::sign_decode(mean, exchange_->active().words(layout(), b),
                             x.data() + blocks[b].values.offset,
                             blocks[b].values.size);
      });
  return -1;
}

void CompressedAllReduce::run(const Source& source, const Sink& sink) {
  exchange_->run(source, sink);
}

void CompressedAllReduce::set_active(ActiveMask active) {
  exchange_->set_active(std::move(active));
}

void CompressedAllReduce::set_observer(WireObserver* observer) noexcept {
  exchange_->set_observer(observer);
}

const BlockLayout& CompressedAllReduce::layout() const noexcept {
  return exchange_->layout();
}

kernels::Signs CompressedAllReduce::mean(std::size_t block) const noexcept {
  return exchange_->mean(block);
}

double CompressedAllReduce::wait_seconds() const noexcept {
  return exchange_->wait_seconds();
}

ConstView CompressedAllReduce::worker_error() const noexcept {
  return exchange_->errors().worker.values();
}

ConstView CompressedAllReduce::server_error() const noexcept {
  return exchange_->errors().server.values();
}

void CompressedAllReduce::load_errors(ConstView worker, ConstView server) {
  exchange_->errors().load(worker, server);
}

}  // namespace thinwire::exchange
