// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/compressed_all_reduce.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "core/require.h"
#include "exchange/checks.h"
#include "exchange/records/early_exchange.h"
#include "exchange/records/records.h"
#include "exchange/records/two_phase_exchange.h"
#include "exchange/residuals.h"

namespace thinwire::exchange {

using kernels::SignInput;
using kernels::Signs;

/// Records of 1 bit per element with error feedback, which travel through
/// `exchange`, a TwoPhaseExchange or an EarlyExchange of `layout`.
template <class Exchange>
struct SignRecords {
  const BlockLayout& layout;
  const ActiveMask& active;
  WireObserver* const& observer;  // of the next steps()
  Residuals& residuals;
  Exchange& exchange;
  /// Residuals before the run, if it is to keep them; otherwise null. They are
  /// copied block by block, as these are encoded, to stay in the cache.
  const Residuals* before = nullptr;

  /// Returns the steps of a run, which refer to this object.
  [[nodiscard]] RecordSteps steps(CompressedAllReduce::Source source,
                                  std::function<void(Range)> deliver) {
    RecordSteps steps{
        .encode = [this, source = std::move(source)](
                      Range blocks) { encode(blocks, source); },
        .average = [this](const Received& from,
                          Range blocks) { average(from, blocks); },
        .deliver = std::move(deliver)};
    if (observer == nullptr) return steps;
    const auto show = [this, to = observer](auto member) {
      return [this, to, member](Range blocks) {
        for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
          (to->*member)(b, signs_in(exchange.record(b)));
      };
    };
    steps.encoded = show(&WireObserver::worker_record);
    steps.averaged = show(&WireObserver::server_record);
    return steps;
  }

  /// Encodes blocks of a server's own values, without a mean.
  void encode_served(Range blocks, const CompressedAllReduce::Source& source) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
      write(b, residuals.server.kept(b), [&](const auto& block) {
        return kernels::sign_encode(source(b), block);
      });
  }

 private:
  template <class Encode>
  void write(std::size_t b, const KeptResidual& kept, const Encode& encode) {
    std::uint8_t* const record = exchange.record(b);
    const float scale =
        encode(kernels::SignBlock{.residual = kept.values,
                                  .scale = kept.scale,
                                  .words = words_of(record),
                                  .active = active.words(layout, b),
                                  .num_active = active.count(layout, b)});
    set_scale(record, scale);
    kept.sent_with(scale);
  }

  void encode(Range blocks, const CompressedAllReduce::Source& source) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      if (before != nullptr) residuals.worker.copy(b, before->worker);
      write(b, residuals.worker.kept(b), [&](const auto& block) {
        return kernels::sign_encode(source(b), block);
      });
    }
  }

  void average(const Received& from, Range blocks) {
    std::vector<kernels::Signs> signs(exchange.places().workers);
    const auto inverse_count =
        static_cast<float>(1.0 / static_cast<double>(signs.size()));
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      for (std::size_t r = 0; r < signs.size(); ++r)
        signs[r] = signs_in(from.record(r, b));
      if (before != nullptr) residuals.server.copy(b, before->server);
      write(b, residuals.server.kept(b), [&](const auto& block) {
        return kernels::sign_encode_average(signs, inverse_count, block);
      });
    }
  }
};

struct CompressedAllReduce::Impl {
  // A run that may be taken back: it writes residuals and records of its own,
  // which replace the others if it counts.
  struct Early {
    Early(comm::Communicator& comm, Impl& present)
        : residuals(present.layout, Places(comm, nullptr),
                    present.options.residual_dtype),
          records{present.layout, present.active, present.observer,
                  residuals,      exchange,       &present.residuals},
          exchange(comm, present.options.early_threads, present.layout) {}

    Residuals residuals;
    SignRecords<EarlyExchange> records;
    EarlyExchange exchange;  // last: its thread uses the rest
  };

  Impl(comm::Communicator& c, ThreadPool& pool, BlockLayout blocks,
       const CompressedAllReduceOptions& o, const comm::HostGroups* groups)
      : comm(c),
        options(o),
        layout(std::move(blocks)),
        residuals(layout, Places(c, groups), o.residual_dtype),
        exchange(c, groups, pool, layout, o.keeps_previous),
        threads(pool) {
    if (o.runs_early) early = std::make_unique<Early>(c, *this);
  }

  comm::Communicator& comm;
  CompressedAllReduceOptions options;
  BlockLayout layout;
  ActiveMask active;
  WireObserver* observer = nullptr;
  Residuals residuals;
  TwoPhaseExchange exchange;
  SignRecords<TwoPhaseExchange> records{layout, active, observer, residuals,
                                        exchange};
  ThreadPool& threads;
  std::unique_ptr<Early> early;
};

CompressedAllReduce::CompressedAllReduce(
    comm::Communicator& comm, ThreadPool& pool, std::span<const Range> units,
    const CompressedAllReduceOptions& options, const comm::HostGroups* groups) {
  require_options(comm, options.blocks, options.residual_dtype);
  require_groups(comm, groups);
  require(options.blocks.bits == 1, "BlockOptions.bits",
          "1 for a CompressedAllReduce", options.blocks.bits);
  require(!options.runs_early || (!options.keeps_previous && groups == nullptr),
          "CompressedAllReduceOptions.runs_early",
          "false with keeps_previous or groups", options.runs_early);
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
  RecordSteps steps = impl_->records.steps(source, [&](Range blocks) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
      sink(b, signs_in(impl_->exchange.result(b)));
  });
  steps.delivered = delivered;
  impl_->exchange.run(std::move(steps));
}

void CompressedAllReduce::begin_early(Source source) {
  if (!impl_->early)
    refuse(
        "begin_early() needs CompressedAllReduceOptions.runs_early, got false");
  impl_->early->exchange.begin(
      impl_->early->records.steps(std::move(source), {}));
}

bool CompressedAllReduce::has_early() const noexcept {
  return impl_->early && impl_->early->exchange.has_begun();
}

void CompressedAllReduce::add_early() { impl_->early->exchange.add(); }

std::size_t CompressedAllReduce::left_early() const noexcept {
  return impl_->early->exchange.left();
}

void CompressedAllReduce::accept_early(const Sink& sink,
                                       const Delivered& delivered) {
  Impl::Early& early = *impl_->early;
  const auto deliver = [&](Range blocks) {
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
      sink(b, signs_in(early.exchange.record(b)));
  };
  early.exchange.finish(impl_->threads, deliver, delivered);
  std::swap(impl_->residuals, early.residuals);
  impl_->exchange.swap_records(early.exchange.records());
}

void CompressedAllReduce::drop_early() noexcept {
  if (impl_->early) impl_->early->exchange.abandon();
}

void CompressedAllReduce::share(const Source& source) {
  impl_->exchange.share(
      [&](Range blocks) { impl_->records.encode_served(blocks, source); });
}

void CompressedAllReduce::set_active(ActiveMask active) {
  for (Residuals::Side* side :
       {&impl_->residuals.worker, &impl_->residuals.server})
    side->form_errors_between(impl_->active, active);
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
    refuse(
        "previous_mean() needs CompressedAllReduceOptions.keeps_previous, got "
        "false");
  return signs_in(impl_->exchange.previous(block));
}

double CompressedAllReduce::wait_seconds() const noexcept {
  const double early = impl_->early ? impl_->early->exchange.wait_seconds() : 0;
  return impl_->exchange.wait_seconds() + early;
}

ConstView CompressedAllReduce::worker_error() const noexcept {
  impl_->residuals.worker.form_errors(impl_->active);
  return std::as_const(impl_->residuals.worker.values).view();
}

ConstView CompressedAllReduce::server_error() const noexcept {
  impl_->residuals.server.form_errors(impl_->active);
  return std::as_const(impl_->residuals.server.values).view();
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
  const auto blocks = impl_->layout.blocks();
  require(block < blocks.size(), "block",
          fmt::format("in [0, {})", blocks.size()), block);
  if (!encodes(block)) {
    const Places& places = impl_->exchange.places();
    reject(
        fmt::format("block must be one of this rank's piece, servers "
                    "[{}, {}), got {} of server {}",
                    places.first, places.end(), block, blocks[block].server));
  }
  impl_->residuals.worker.add(block, values, weight, impl_->active);
}

}  // namespace thinwire::exchange
