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

  // With a scale per unit a block's scale is known only once all blocks of the
  // unit have been summed up, and its padding has residuals: e is kept.
  [[nodiscard]] bool encodes_in_one_pass() const {
    return !options.blocks.scale_per_unit;
  }

  // c = x + e over the block, padding included.
  double accumulate(std::size_t b, const Source& source, float* error) {
    const Block& block = layout.blocks()[b];
    const std::uint32_t* mask = active.words(layout, b);
    const std::size_t padding = block.residual.size - block.values.size;
    double sum = 0;
    if (block.values.size != 0)
      sum += kernels::sign_accumulate(source(b), error, mask,
                                      kernels::SignNorm::kSquares,
                                      block.values.size);
    if (padding != 0)
      sum += kernels::sign_accumulate({}, error + block.values.size, nullptr,
                                      kernels::SignNorm::kSquares, padding);
    return sum;
  }

  void split(std::size_t b, float* error, float scale) {
    std::uint8_t* const record = exchange.record(b);
    set_scale(record, scale);
    kernels::sign_split(error, scale, words_of(record), active.words(layout, b),
                        layout.blocks()[b].residual.size);
  }

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

  // A block with a scale of its own.
  void encode_block(std::size_t b, const Source& source) {
    const KeptResidual kept = residuals.kept_worker(b);
    sent(b, kept,
         kernels::sign_encode(source(b), sign_block(b, kept),
                              kernels::SignNorm::kSquares));
  }

  // All blocks of one scale: their common sum first, then their bits.
  void encode_blocks(std::size_t first, std::size_t stride,
                     const Source& source) {
    double sum = 0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < layout.blocks_per_scale(); ++i) {
      const std::size_t b = first + i * stride;
      sum += accumulate(b, source, residuals.worker(b).floats());
      count += active.count(layout, b);
    }
    const float scale =
        kernels::sign_scale(sum, count, kernels::SignNorm::kSquares);
    for (std::size_t i = 0; i < layout.blocks_per_scale(); ++i) {
      const std::size_t b = first + i * stride;
      split(b, residuals.worker(b).floats(), scale);
    }
  }

  void encode(const Bucket& bucket, Range scales, const Source& source) {
    for (std::size_t s = scales.offset; s < scales.end(); ++s) {
      const std::size_t first = layout.first_block_of(bucket, s);
      if (encodes_in_one_pass())
        encode_block(first, source);
      else
        encode_blocks(first, layout.block_stride(bucket), source);
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
    if (encodes_in_one_pass()) {
      const KeptResidual kept = residuals.kept_server(b);
      sent(b, kept,
           kernels::sign_encode_average(signs, inverse_count,
                                        sign_block(b, kept),
                                        kernels::SignNorm::kSquares));
      return;
    }
    float* const error = residuals.server(b).floats();
    const double sum = kernels::sign_average(
        signs, inverse_count, error, active.words(layout, b),
        kernels::SignNorm::kSquares, layout.blocks()[b].residual.size);
    split(b, error,
          kernels::sign_scale(sum, active.count(layout, b),
                              kernels::SignNorm::kSquares));
  }

  void run(const Source& source, const Sink& sink) {
    RecordSteps steps{
        .encode = [&](const Bucket& bucket,
                      Range scales) { encode(bucket, scales, source); },
        .average = [&](const Received& from,
                       Range blocks) { average(from, blocks); },
        .deliver =
            [&](Range blocks) {
              for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
                sink(b, signs_in(exchange.result(b)));
            }};
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
    exchange.run(steps);
  }

  void share(const Source& source) {
    exchange.share([&](Range blocks) {
      for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
        const KeptResidual kept = residuals.kept_server(b);
        sent(b, kept,
             kernels::sign_encode(source(b), sign_block(b, kept),
                                  kernels::SignNorm::kSquares));
      }
    });
  }
};

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, std::span<const Range> units,
    const CompressedAllReduceOptions& options, const comm::HostGroups* groups) {
  require_options(comm, options.blocks, options.residual_dtype);
  require_groups(comm, options.blocks, groups);
  if (options.blocks.bits != 1)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("BlockOptions.bits must be 1 for a "
                            "CompressedAllReduce, got {}",
                            options.blocks.bits));
  if (options.runs_early &&
      (options.keeps_previous || options.blocks.scale_per_unit ||
       groups != nullptr))
    throw Error(ErrorCode::kInvalidArgument,
                "CompressedAllReduceOptions.runs_early must be false with "
                "keeps_previous, blocks.scale_per_unit or groups, got true");
  impl_ = std::make_unique<Impl>(comm, pool, BlockLayout(units, options.blocks),
                                 options, groups);
}

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, BlockLayout layout,
    const CompressedAllReduceOptions& options, const comm::HostGroups* groups) {
  CompressedAllReduceOptions own = options;
  own.blocks = {.world_size = layout.world_size()};
  require_options(comm, own.blocks, own.residual_dtype);
  require_groups(comm, own.blocks, groups);
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

void CompressedAllReduce::run(const Source& source, const Sink& sink) {
  impl_->run(source, sink);
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

void CompressedAllReduce::accept_early(const Sink& sink) {
  impl_->early->finish(impl_->threads, sink);
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
