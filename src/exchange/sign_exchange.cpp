// SPDX-License-Identifier: Apache-2.0
#include "exchange/sign_exchange.h"

#include <fmt/format.h>

#include <utility>

#include "core/require.h"

namespace thinwire::exchange {

SignExchange::SignExchange(comm::Communicator& comm,
                           const comm::HostGroups* groups, ThreadPool& pool,
                           BlockLayout layout, const Options& options)
    : layout_(std::move(layout)),
      pipeline_({comm, groups}, pool, layout_, {sign_codec(), sign_codec()},
                {.keeps_previous = options.keeps_previous}),
      residuals_(layout_, pipeline_.places(), options.residual_dtype) {}

// ---- a run

namespace {

auto taking(const SignExchange::Sink& sink) {
  return [sink](std::size_t b, const std::uint8_t* record) {
    sink(b, SignCodec::decode(record));
  };
}

}  // namespace

void SignExchange::run(const Source& source, const Sink& sink,
                       const Delivered& delivered) {
  RunSteps all = steps(source);
  all.take = taking(sink);
  all.taken = delivered;
  pipeline_.run(std::move(all));
  residuals_.accept();
}

void SignExchange::launch(const Source& source, const Delivered& queued) {
  RunSteps all = steps(source);
  all.queued = queued;
  pipeline_.launch(std::move(all));
}

void SignExchange::finish(const Sink& sink) {
  pipeline_.take_with(taking(sink), {});
  pipeline_.finish();
  residuals_.accept();
}

void SignExchange::drop() noexcept {
  if (!has_begun()) return;
  pipeline_.drop();
  residuals_.drop();
}

// Only servers encode. They encode their own values, without a mean.
void SignExchange::share(const Source& source) {
  pipeline_.run({.encode =
                     [&](std::size_t b, std::uint8_t* record) {
                       encode(residuals_.server, source, b, record);
                     }},
                Direction::kDown);
  residuals_.server.accept();
}

RunSteps SignExchange::steps(const Source& source) {
  RunSteps steps{
      .encode =
          [this, source](std::size_t b, std::uint8_t* record) {
            encode(residuals_.worker, source, b, record);
          },
      .average = [this](std::size_t b, SentRecords sent,
                        std::uint8_t* record) { average(b, sent, record); }};
  if (observer_ == nullptr) return steps;
  const auto show = [to = observer_](auto member) {
    return [to, member](std::size_t b, const std::uint8_t* record) {
      (to->*member)(b, SignCodec::decode(record));
    };
  };
  steps.encoded = show(&WireObserver::worker_record);
  steps.averaged = show(&WireObserver::server_record);
  return steps;
}

kernels::SignBlock SignExchange::block_of(std::size_t b,
                                          const KeptResidual& kept) const {
  return {.residual = kept.values,
          .scale = kept.scale,
          .active = active_.words(layout_, b),
          .num_active = active_.count(layout_, b)};
}

void SignExchange::encode(ResidualSide& side, const Source& source,
                          std::size_t b, std::uint8_t* record) {
  const KeptResidual kept = side.kept(b);
  kept.sent_with(SignCodec::encode(source(b), block_of(b, kept), record));
}

void SignExchange::average(std::size_t b, SentRecords sent,
                           std::uint8_t* record) {
  const KeptResidual kept = residuals_.server.kept(b);
  const auto inverse_count =
      static_cast<float>(1.0 / static_cast<double>(sent.size()));
  kept.sent_with(
      SignCodec::average(sent, inverse_count, block_of(b, kept), record));
}

// ---- between runs

void SignExchange::set_active(ActiveMask active) {
  for (ResidualSide* side : {&residuals_.worker, &residuals_.server})
    side->form_errors_between(active_, active);
  active_ = std::move(active);
}

Residuals& SignExchange::errors() {
  residuals_.worker.form_errors(active_);
  residuals_.server.form_errors(active_);
  return residuals_;
}

void SignExchange::add_to_worker_error(std::size_t block, const float* values,
                                       float weight) {
  const auto blocks = layout_.blocks();
  require(block < blocks.size(), "block",
          fmt::format("in [0, {})", blocks.size()), block);
  if (!encodes(block))
    reject(fmt::format(
        "block must be one of this rank's piece, servers "
        "[{}, {}), got {} of server {}",
        places().first, places().end(), block, blocks[block].server));
  residuals_.worker.add(block, values, weight, active_);
}

}  // namespace thinwire::exchange
