// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/compressed_all_reduce.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "exchange/checks.h"
#include "exchange/early_run.h"
#include "exchange/records.h"
#include "exchange/residuals.h"
#include "exchange/two_phase_exchange.h"
#include "thinwire/core/error.h"

namespace thinwire::exchange {

using kernels::SignInput;
using kernels::Signs;

// What the records of TwoPhaseExchange say here: kernels and residuals.
struct CompressedAllReduce::Impl {
  Impl(comm::Communicator& c, ThreadPool& pool, BlockLayout blocks,
       const CompressedAllReduceOptions& o, const comm::HostGroups* groups)
      : comm(c),
        options(o),
        layout(std::move(blocks)),
        residuals(layout, Places(c, groups), o.residual_dtype),
        exchange(c, groups, pool, layout, o.keeps_previous),
        threads(pool) {
    if (o.runs_early)
      early = std::make_unique<EarlyRun>(
          c, EarlyRun::Present{layout, active, residuals, observer}, o);
  }

  comm::Communicator& comm;
  CompressedAllReduceOptions options;
  BlockLayout layout;
  ActiveMask active;
  WireObserver* observer = nullptr;
  Residuals residuals;
  TwoPhaseExchange exchange;
  ThreadPool& threads;
  std::unique_ptr<EarlyRun> early;  // last: its thread uses the rest

  [[nodiscard]] kernels::SignBlock sign_block(std::size_t b,
                                              const KeptResidual& kept) {
    return {.residual = kept.values,
            .scale = kept.scale,
            .words = words_of(exchange.record(b)),
            .active = active.words(layout, b),
            .num_active = active.count(layout, b)};
  }

  void sent(std::size_t b, const KeptResidual& kept, float scale) {
    set_scale(exchange.record(b), scale);
    kept.sent_with(scale);
  }

  void encode(Range blocks, const Source& source) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      const KeptResidual kept = residuals.kept_worker(b);
      sent(b, kept, kernels::sign_encode(source(b), sign_block(b, kept)));
    }
  }

  void average(const Received& from, Range blocks) {
    std::vector<Signs> signs(exchange.places().workers);
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      for (std::size_t r = 0; r < signs.size(); ++r)
        signs[r] = signs_in(from.record(r, b));
      average_block(b, signs);
    }
  }

  void average_block(std::size_t b, std::span<const Signs> signs) {
    const auto inverse_count =
        static_cast<float>(1.0 / static_cast<double>(signs.size()));
    const KeptResidual kept = residuals.kept_server(b);
    sent(b, kept,
         kernels::sign_encode_average(signs, inverse_count,
                                      sign_block(b, kept)));
  }

  void run(const Source& source, const Sink& sink, const Delivered& delivered) {
    RecordSteps steps{.encode = [&](Range blocks) { encode(blocks, source); },
                      .average = [&](const Received& from,
                                     Range blocks) { average(from, blocks); },
                      .deliver =
                          [&](Range blocks) {
                            for (std::size_t b = blocks.offset;
                                 b < blocks.end(); ++b)
                              sink(b, signs_in(exchange.result(b)));
                          },
                      .delivered = delivered};
    if (observer != nullptr) {
      steps.encoded = [&](Range blocks) {
        for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
          observer->worker_record(b, signs_in(exchange.record(b)));
      };
      steps.averaged = [&](Range blocks) {
        for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
          observer->server_record(b, signs_in(exchange.record(b)));
      };
    }
    exchange.run(std::move(steps));
  }

  void share(const Source& source) {
    exchange.share([&](Range blocks) {
      for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
        const KeptResidual kept = residuals.kept_server(b);
        sent(b, kept, kernels::sign_encode(source(b), sign_block(b, kept)));
      }
    });
  }
};

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, std::span<const Range> units,
    const CompressedAllReduceOptions& options, const comm::HostGroups* groups) {
  require_options(comm, options.blocks, options.residual_dtype);
  require_groups(comm, groups);
  if (options.blocks.bits != 1)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("BlockOptions.bits must be 1 for a "
                            "CompressedAllReduce, got {}",
                            options.blocks.bits));
  if (options.runs_early && (options.keeps_previous || groups != nullptr))
    throw Error(ErrorCode::kInvalidArgument,
                "CompressedAllReduceOptions.runs_early must be false with "
                "keeps_previous or groups, got true");
  impl_ = std::make_unique<Impl>(comm, pool, BlockLayout(units, options.blocks),
                                 options, groups);
}

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, BlockLayout layout,
    const CompressedAllReduceOptions& options, const comm::HostGroups* groups) {
  CompressedAllReduceOptions own = options;
  own.blocks = {.world_size = layout.world_size()};
  require_options(comm, own.blocks, own.residual_dtype);
  require_groups(comm, groups);
  impl_ = std::make_unique<Impl>(comm, pool, std::move(layout), own, groups);
}

CompressedAllReduce::~CompressedAllReduce() = default;

int CompressedAllReduce::all_reduce(View values) {
  const std::span<float> x = values.as<float>();
  require_inside(impl_->layout, x.size());
  if (impl_->comm.size() == 1 && !impl_->options.compresses_alone) return -1;
  if (impl_->options.checks_finite) {
    const int rank =
        find_nonfinite(impl_->comm, impl_->layout, impl_->exchange.places(), x);
    if (rank >= 0) return rank;
  }
  const auto blocks = impl_->layout.blocks();
  run(
      [&](std::size_t b) {
        return SignInput{.values = x.data() + blocks[b].values.offset};
      },
      [&](std::size_t b, Signs mean) {
        kernels::sign_decode(mean, impl_->active.words(impl_->layout, b),
                             x.data() + blocks[b].values.offset,
                             blocks[b].values.size);
      });
  return -1;
}

void CompressedAllReduce::run(const Source& source, const Sink& sink,
                              const Delivered& delivered) {
  impl_->run(source, sink, delivered);
}

void CompressedAllReduce::begin_early(Source source) {
  if (!impl_->early)
    throw Error(ErrorCode::kFailedPrecondition,
                "begin_early() needs CompressedAllReduceOptions.runs_early, "
                "got false");
  impl_->early->begin(std::move(source));
}

bool CompressedAllReduce::has_early() const noexcept {
  return impl_->early && impl_->early->exchange().has_begun();
}

void CompressedAllReduce::add_early() { impl_->early->exchange().add(); }

std::size_t CompressedAllReduce::left_early() const noexcept {
  return impl_->early->exchange().left();
}

void CompressedAllReduce::accept_early(const Sink& sink,
                                       const Delivered& delivered) {
  impl_->early->finish(impl_->threads, sink, delivered);
  std::swap(impl_->residuals, impl_->early->residuals());
  impl_->exchange.swap_records(impl_->early->exchange().records());
}

void CompressedAllReduce::drop_early() noexcept {
  if (impl_->early) impl_->early->exchange().abandon();
}

void CompressedAllReduce::share(const Source& source) { impl_->share(source); }

void CompressedAllReduce::set_active(ActiveMask active) {
  impl_->residuals.form_errors_between(impl_->active, active);
  impl_->active = std::move(active);
}

const ActiveMask& CompressedAllReduce::active() const noexcept {
  return impl_->active;
}

void CompressedAllReduce::set_observer(WireObserver* observer) noexcept {
  impl_->observer = observer;
}

const BlockLayout& CompressedAllReduce::layout() const noexcept {
  return impl_->layout;
}

bool CompressedAllReduce::encodes(std::size_t block) const noexcept {
  return impl_->exchange.places().has(impl_->layout.blocks()[block]);
}

Signs CompressedAllReduce::mean(std::size_t block) const noexcept {
  return signs_in(std::as_const(impl_->exchange).result(block));
}

Signs CompressedAllReduce::previous_mean(std::size_t block) const {
  if (!impl_->options.keeps_previous)
    throw Error(ErrorCode::kFailedPrecondition,
                "previous_mean() needs "
                "CompressedAllReduceOptions.keeps_previous, got false");
  return signs_in(impl_->exchange.previous(block));
}

double CompressedAllReduce::wait_seconds() const noexcept {
  const double early =
      impl_->early ? impl_->early->exchange().wait_seconds() : 0;
  return impl_->exchange.wait_seconds() + early;
}

ConstView CompressedAllReduce::worker_error() const noexcept {
  impl_->residuals.form_worker_errors(impl_->active);
  return impl_->residuals.worker_view();
}

ConstView CompressedAllReduce::server_error() const noexcept {
  impl_->residuals.form_server_errors(impl_->active);
  return impl_->residuals.server_view();
}

void CompressedAllReduce::clear_errors() noexcept { impl_->residuals.clear(); }

void CompressedAllReduce::load_errors(ConstView worker, ConstView server) {
  impl_->residuals.load(worker, server);
}

void CompressedAllReduce::take_errors(Buffer&& worker, Buffer&& server) {
  impl_->residuals.take(std::move(worker), std::move(server));
}

void CompressedAllReduce::add_to_worker_error(std::size_t block,
                                              const float* values,
                                              float weight) {
  impl_->residuals.add_to_worker(block, values, weight, impl_->active);
}

}  // namespace thinwire::exchange
