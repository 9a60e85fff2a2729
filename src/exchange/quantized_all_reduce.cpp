// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/quantized_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/visit_floats.h"
#include "exchange/checks.h"
#include "exchange/records.h"
#include "exchange/residuals.h"
#include "exchange/two_phase_exchange.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::exchange {

using kernels::Quantized;

namespace {

// One block's values, rounded in place to what rounding took.
using Scratch = std::array<float, 1024>;

void add_to(float* to, const float* from, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) to[i] = to[i] + from[i];
}

}  // namespace

// What the records of TwoPhaseExchange say here.
struct QuantizedAllReduce::Impl {
  Impl(comm::Communicator& c, ThreadPool& pool, std::span<const Range> units,
       const QuantizedAllReduceOptions& o, const comm::HostGroups* groups)
      : comm(c),
        options(o),
        layout(units, o.blocks),
        exchange(c, groups, pool, layout, /*keeps_previous=*/false) {
    if (o.keeps_errors)
      residuals.emplace(layout, exchange.places(), o.residual_dtype);
  }

  comm::Communicator& comm;
  QuantizedAllReduceOptions options;
  BlockLayout layout;
  ActiveMask active;
  TwoPhaseExchange exchange;
  std::optional<Residuals> residuals;

  // run()'s callbacks, and one for the mean of a served block before it is
  // rounded, if set.
  struct Steps {
    Source source;
    Feedback worker;
    std::function<void(std::size_t block, float* mean)> averaged;
    Feedback server;
    Sink sink;
  };

  [[nodiscard]] Residuals& require_errors(const char* call) {
    if (!residuals)
      throw Error(
          ErrorCode::kFailedPrecondition,
          fmt::format("{} needs QuantizedAllReduceOptions.keeps_errors, "
                      "got false",
                      call));
    return *residuals;
  }

  [[nodiscard]] std::size_t size_of(std::size_t b) const {
    return layout.blocks()[b].values.size;
  }

  // c becomes its error.
  void write_record(std::size_t b, float* c) {
    std::uint8_t* const record = exchange.record(b);
    set_scale(record,
              kernels::quantize(c, options.blocks.bits, words_of(record),
                                active.words(layout, b), size_of(b)));
  }

  void encode(Range blocks, const Steps& steps) {
    Scratch c;
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      steps.source(b, c.data());
      write_record(b, c.data());
      steps.worker(b, c.data());
    }
  }

  void average(const Received& from, Range blocks, const Steps& steps) {
    Scratch c;
    std::vector<Quantized> sent(exchange.places().workers);
    const auto inverse_count =
        static_cast<float>(1.0 / static_cast<double>(sent.size()));
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      for (std::size_t r = 0; r < sent.size(); ++r)
        sent[r] = quantized_in(from.record(r, b));
      kernels::quantized_average(sent, options.blocks.bits, inverse_count,
                                 active.words(layout, b), c.data(), size_of(b));
      if (steps.averaged) steps.averaged(b, c.data());
      write_record(b, c.data());
      steps.server(b, c.data());
    }
  }

  void read(std::size_t b, float* mean) const {
    kernels::dequantize(quantized_in(exchange.result(b)), options.blocks.bits,
                        active.words(layout, b), mean, size_of(b));
  }

  void deliver(Range blocks, const Sink& sink) const {
    Scratch mean;
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      read(b, mean.data());
      sink(b, mean.data());
    }
  }

  // `steps` must outlive the run.
  [[nodiscard]] RecordSteps records_of(const Steps& steps) {
    return {.encode = [&](Range blocks) { encode(blocks, steps); },
            .average = [&](const Received& from,
                           Range blocks) { average(from, blocks, steps); },
            .deliver =
                [&](Range blocks) {
                  if (steps.sink) deliver(blocks, steps.sink);
                }};
  }

  // Both errors are fed back.
  [[nodiscard]] Steps with_feedback(Values values, float factor, Sink sink) {
    const auto store = [this](Residual residual, std::size_t b,
                              const float* error) {
      std::copy_n(error, size_of(b), residual.floats());
      residual.store();
    };
    return {.source =
                [this, values = std::move(values), factor](std::size_t b,
                                                           float* c) {
                  write_scaled(values(b), factor, std::span(c, size_of(b)));
                  add_to(c, residuals->worker(b).floats(), size_of(b));
                },
            .worker =
                [this, store](std::size_t b, const float* error) {
                  store(residuals->worker(b), b, error);
                },
            .averaged =
                [this](std::size_t b, float* mean) {
                  add_to(mean, residuals->server(b).floats(), size_of(b));
                },
            .server =
                [this, store](std::size_t b, const float* error) {
                  store(residuals->server(b), b, error);
                },
            .sink = std::move(sink)};
  }

  void all_reduce(View x) {
    const auto values_of = [&](std::size_t b) {
      const Range& at = layout.blocks()[b].values;
      return x.subview(at.offset, at.size);
    };
    const Steps steps =
        with_feedback(values_of, 1, [&](std::size_t b, const float* mean) {
          std::copy_n(mean, size_of(b), values_of(b).as<float>().data());
        });
    exchange.run(records_of(steps));
  }

  Steps begun;  // of the run bucket by bucket
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
  require_inside(impl_->layout, x.size());
  (void)impl_->require_errors("all_reduce()");
  if (impl_->comm.size() == 1) return -1;
  if (impl_->options.checks_finite) {
    const int rank =
        find_nonfinite(impl_->comm, impl_->layout, impl_->exchange.places(), x);
    if (rank >= 0) return rank;
  }
  impl_->all_reduce(values);
  return -1;
}

void QuantizedAllReduce::run(const Source& source, const Feedback& worker,
                             const Feedback& server, const Sink& sink) {
  const Impl::Steps steps{source, worker, nullptr, server, sink};
  impl_->exchange.run(impl_->records_of(steps));
}

void QuantizedAllReduce::begin(Values values, float factor) {
  (void)impl_->require_errors("begin()");
  impl_->begun = impl_->with_feedback(std::move(values), factor, {});
  impl_->exchange.begin(impl_->records_of(impl_->begun));
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

void QuantizedAllReduce::set_active(ActiveMask active) {
  impl_->active = std::move(active);
}

const ActiveMask& QuantizedAllReduce::active() const noexcept {
  return impl_->active;
}

const BlockLayout& QuantizedAllReduce::layout() const noexcept {
  return impl_->layout;
}

double QuantizedAllReduce::wait_seconds() const noexcept {
  return impl_->exchange.wait_seconds();
}

ConstView QuantizedAllReduce::worker_error() const noexcept {
  return impl_->residuals ? impl_->residuals->worker_view() : ConstView();
}

ConstView QuantizedAllReduce::server_error() const noexcept {
  return impl_->residuals ? impl_->residuals->server_view() : ConstView();
}

void QuantizedAllReduce::clear_errors() noexcept {
  if (impl_->residuals) impl_->residuals->clear();
}

void QuantizedAllReduce::load_errors(ConstView worker, ConstView server) {
  impl_->require_errors("load_errors()").load(worker, server);
}

void QuantizedAllReduce::take_errors(Buffer&& worker, Buffer&& server) {
  impl_->require_errors("take_errors()")
      .take(std::move(worker), std::move(server));
}

std::pair<Buffer, Buffer> QuantizedAllReduce::release_errors() {
  auto released = impl_->require_errors("release_errors()").release();
  impl_->residuals.reset();
  return released;
}

}  // namespace thinwire::exchange
