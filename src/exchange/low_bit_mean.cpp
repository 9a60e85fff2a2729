// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ranges.h"
#include "core/require.h"
#include "core/set_to_zero.h"
#include "exchange/checks.h"
#include "exchange/records/places.h"
#include "exchange/records/quantized_records.h"
#include "exchange/records/two_phase_exchange.h"
#include "exchange/saturate.h"
#include "exchange/wait_meter.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange {

namespace {

constexpr std::size_t kMostInBlock = 1024;

void copy_values(ConstView from, View to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.bytes());
}

template <class AnyView>
AnyView of(AnyView whole, Range at) {
  return whole.subview(at.offset, at.size);
}

}  // namespace

struct LowBitMean::Impl {
  // A block of the flat array.
  struct Cut {
    Range range;
    std::size_t place;   // its server
    std::size_t served;  // its first element in server, if served here
  };
  struct Unit {
    std::size_t size;
    Range cuts;
  };

  // Residuals of a part, which replace the old ones only if all of it is
  // finite.
  struct Fresh {
    Buffer worker;
    Buffer server;
  };

  // The way of one part through the ranks.
  struct Plan {
    Plan(comm::Communicator& comm, const comm::HostGroups* groups,
         ThreadPool& pool, BlockLayout&& made)
        : layout(std::move(made)),
          exchange(comm, groups, pool, layout, /*keeps_previous=*/false) {}

    std::vector<std::size_t> units;
    BlockLayout layout;  // values: of the part; residual: of the flat array
    TwoPhaseExchange exchange;
    std::size_t elements = 0;           // of the part
    std::size_t served_elements = 0;    // of them, by this rank
    std::vector<std::size_t> fresh_at;  // per served block, in Fresh::server
    std::vector<Range> served;          // per served block, in server

    // While it is in flight:
    View values;
    double loss_scale = 1;
    Fresh* fresh = nullptr;
    std::atomic<bool> is_finite = true;
  };

  Impl(comm::Communicator& c, ThreadPool& p, std::span<const std::size_t> sizes,
       const LowBitMeanOptions& o, const comm::HostGroups* g)
      : comm(c), pool(p), options(o), groups(g), places(c, g) {
    std::size_t offset = 0;
    std::size_t served = 0;
    for (const std::size_t size : sizes) {
      const std::size_t first = cuts.size();
      for (const std::size_t end = offset + size; offset < end;) {
        const Range range{offset, std::min(kMostInBlock, end - offset)};
        const std::size_t place =
            cuts.size() % static_cast<std::size_t>(comm.size());
        cuts.push_back({range, place, served});
        if (place == places.own) served += range.size;
        offset = range.end();
      }
      units.push_back({size, {first, cuts.size() - first}});
    }
    worker = Buffer(offset, options.residual_dtype);
    server = Buffer(served, options.residual_dtype);
  }

  comm::Communicator& comm;
  ThreadPool& pool;
  const LowBitMeanOptions options;
  const comm::HostGroups* groups;  // null: flat
  const Places places;
  std::vector<Cut> cuts;
  std::vector<Unit> units;
  Buffer worker;
  Buffer server;
  Buffer host_mean;   // of a part, unless flat
  double waited = 0;  // by plans that are gone, and inside hosts
  std::vector<std::unique_ptr<Plan>> plans;
  // The oldest first. One is being sent back, the next one averaged, and the
  // last one encoded.
  std::deque<Plan*> in_flight;
  std::array<Fresh, 3> fresh;
  std::size_t begun = 0;  // since nothing was in flight

  [[nodiscard]] bool encodes(const Cut& cut) const {
    return places.first <= cut.place && cut.place < places.end();
  }
  [[nodiscard]] static Range served_range(const Cut& cut) {
    return {cut.served, cut.range.size};
  }
  template <class Predicate>
  [[nodiscard]] std::vector<Range> ranges_of(Predicate&& is_meant) const {
    std::vector<Range> ranges;
    for (const Cut& cut : cuts)
      if (is_meant(cut)) append_joined(ranges, cut.range);
    return ranges;
  }

  [[nodiscard]] std::size_t bytes_per_pass() const {
    std::size_t bytes = 0;
    for (const Cut& cut : cuts)
      if (encodes(cut))
        bytes += record_bytes(cut.range.size, options.bits) *
                 (cut.place == places.own ? places.workers - 1 : 1);
    return bytes;
  }

  void check(const Part& part) const {
    std::vector<bool> seen(units.size());
    for (const Plan* const plan : in_flight)
      for (const std::size_t unit : plan->units) seen[unit] = true;
    std::size_t size = 0;
    for (const std::size_t unit : part.units) {
      require(unit < units.size() && !seen[unit], "Part.units",
              fmt::format("different numbers in [0, {}), none of which is in "
                          "flight",
                          units.size()),
              unit);
      seen[unit] = true;
      size += units[unit].size;
    }
    require(part.values.size() == size, "Part.values",
            fmt::format("of {} elements", size), part.values.size());
    require_loss_scale("loss_scale", part.loss_scale);
    require_float("Part.values", part.values.dtype());
  }

  void require_idle(std::string_view call) const {
    if (!in_flight.empty())
      refuse(fmt::format("{} while a part is in flight", call));
  }

  Plan& plan_for(std::span<const std::size_t> wanted) {
    for (const auto& plan : plans)
      if (std::ranges::equal(plan->units, wanted)) return *plan;
    // Plans of other parts with the same units will not be used again.
    std::erase_if(plans, [&](const auto& plan) {
      const bool is_over = std::ranges::any_of(plan->units, [&](auto unit) {
        return std::ranges::find(wanted, unit) != wanted.end();
      });
      if (is_over) waited += plan->exchange.wait_seconds();
      return is_over;
    });
    return *plans.emplace_back(make_plan(wanted));
  }

  std::unique_ptr<Plan> make_plan(std::span<const std::size_t> wanted) {
    std::vector<std::vector<Block>> buckets;
    const std::size_t most =
        bucket_rule(worker.size(), comm.size(), options.bits);
    std::size_t in_bucket = most;
    std::size_t at = 0;
    for (const std::size_t unit : wanted)
      for (std::size_t k = units[unit].cuts.offset; k < units[unit].cuts.end();
           ++k) {
        const Cut& cut = cuts[k];
        if (in_bucket + cut.range.size > most) {
          buckets.emplace_back();
          in_bucket = 0;
        }
        buckets.back().push_back(
            {{at, cut.range.size}, cut.range, 0, static_cast<int>(cut.place)});
        in_bucket += cut.range.size;
        at += cut.range.size;
      }
    auto plan = std::make_unique<Plan>(
        comm, groups, pool,
        BlockLayout::of_blocks(std::move(buckets), comm.size(), options.bits));
    plan->units.assign(wanted.begin(), wanted.end());
    plan->elements = at;
    for (const Block& block : plan->layout.blocks()) {
      plan->fresh_at.push_back(plan->served_elements);
      plan->served.push_back(served_range(*std::ranges::lower_bound(
          cuts, block.residual.offset, {},
          [](const Cut& cut) { return cut.range.offset; })));
      if (serves(block)) plan->served_elements += block.values.size;
    }
    return plan;
  }

  [[nodiscard]] bool serves(const Block& block) const {
    return static_cast<std::size_t>(block.server) == places.own;
  }

  // Decodes a block to the part, and returns whether it is finite.
  [[nodiscard]] bool deliver(const Plan& plan, std::size_t b) {
    std::array<float, kMostInBlock> values;
    const Range& at = plan.layout.blocks()[b].values;
    const auto mean = std::span(values).first(at.size);
    const float step = read_quantized(plan.exchange, options.bits, b, mean);
    const auto scale = static_cast<float>(plan.loss_scale);
    for (float& value : mean) value *= scale;
    // A code may lie above the largest finite gradient.
    if (std::isfinite(step)) saturate(mean, plan.values.dtype());
    kernels::convert(mean, of(plan.values, at));
    return std::isfinite(step);
  }

  std::vector<bool> begin(const Part& part) {
    Plan& plan = plan_for(part.units);
    plan.values = part.values;
    plan.loss_scale = part.loss_scale;
    plan.is_finite = true;
    if (in_flight.empty()) begun = 0;
    plan.fresh = &fresh[begun++ % fresh.size()];
    need(plan.fresh->worker, plan.elements);
    need(plan.fresh->server, plan.served_elements);
    in_flight.push_back(&plan);
    const View encoded =
        groups != nullptr ? mean_of_host(part.values) : part.values;
    plan.exchange.begin(steps_of(plan, encoded));
    for (std::size_t k = 0; k < plan.layout.buckets().size(); ++k)
      plan.exchange.add(k);
    std::vector<bool> completed;
    if (in_flight.size() > 1) in_flight.rbegin()[1]->exchange.queue_rest();
    if (in_flight.size() > 2) completed.push_back(complete_first());
    return completed;
  }

  RecordSteps steps_of(Plan& plan, View encoded) {
    const std::span<const Block> blocks = plan.layout.blocks();
    const auto own = [this, &plan, blocks, encoded](std::size_t b) {
      const Range& at = blocks[b].values;
      return kernels::QuantizedSum{
          .values = of(encoded, at),
          .factor = static_cast<float>(1 / plan.loss_scale),
          .residual = of(worker.view(), blocks[b].residual),
          .error = of(plan.fresh->worker.view(), at)};
    };
    const auto served = [this, &plan](std::size_t b) {
      const Range& at = plan.served[b];
      return kernels::QuantizedSum{
          .residual = of(server.view(), at),
          .error = of(plan.fresh->server.view(), {plan.fresh_at[b], at.size})};
    };
    const auto taken = [this, &plan](std::size_t b) {
      if (!deliver(plan, b)) plan.is_finite = false;
    };
    return quantized_steps(plan.exchange, options.bits,
                           {.worker = own, .server = served, .deliver = taken});
  }

  std::vector<bool> finish() {
    std::vector<bool> completed;
    if (!in_flight.empty()) in_flight.back()->exchange.queue_rest();
    while (!in_flight.empty()) completed.push_back(complete_first());
    return completed;
  }

  bool complete_first() {
    Plan& plan = *in_flight.front();
    plan.exchange.finish();
    const std::span<const Block> blocks = plan.layout.blocks();
    pool.for_ranges(blocks.size(), 16, [&](std::size_t b, std::size_t end) {
      for (; b < end; ++b)
        plan.is_finite ? keep(plan, b)
                       : withhold(of(plan.values, blocks[b].values));
    });
    in_flight.pop_front();
    return plan.is_finite;
  }

  // Runs body(). If it throws, nothing is in flight afterwards.
  template <class Body>
  auto or_abandon(Body&& body) {
    try {
      return body();
    } catch (...) {
      for (Plan* const plan : in_flight) plan->exchange.abandon();
      in_flight.clear();
      throw;
    }
  }

  void need(Buffer& buffer, std::size_t size) const {
    if (buffer.size() < size) buffer = Buffer(size, options.residual_dtype);
  }

  void keep(const Plan& plan, std::size_t b) {
    const Block& block = plan.layout.blocks()[b];
    if (places.has(block))
      copy_values(of(plan.fresh->worker.view(), block.values),
                  of(worker.view(), block.residual));
    if (serves(block))
      copy_values(
          of(plan.fresh->server.view(), {plan.fresh_at[b], block.values.size}),
          of(server.view(), plan.served[b]));
  }

  View mean_of_host(ConstView values) {
    if (host_mean.size() < values.size())
      host_mean = Buffer(values.size(), DType::kFloat32);
    const View mean = host_mean.view().subview(0, values.size());
    kernels::convert(values, mean);
    WaitMeter(waited).waiting(
        [&] { groups->inside->all_reduce(mean, comm::ReduceOp::kMean); });
    return mean;
  }

  static void withhold(View values) {
    std::array<float, kMostInBlock> marked;
    marked.fill(std::numeric_limits<float>::quiet_NaN());
    kernels::convert(std::span(marked).first(values.size()), values);
  }
};

LowBitMean::LowBitMean(comm::Communicator& comm, ThreadPool& pool,
                       std::span<const std::size_t> sizes,
                       const LowBitMeanOptions& options,
                       const comm::HostGroups* groups) {
  require_groups(comm, groups);
  require_options(options);
  impl_ = std::make_unique<Impl>(comm, pool, sizes, options, groups);
}

LowBitMean::~LowBitMean() = default;

std::vector<bool> LowBitMean::begin(const Part& part) {
  impl_->check(part);
  if (impl_->comm.size() == 1) return {true};
  return impl_->or_abandon([&] { return impl_->begin(part); });
}

std::vector<bool> LowBitMean::finish() {
  return impl_->or_abandon([&] { return impl_->finish(); });
}

bool LowBitMean::average(const Part& part) {
  impl_->require_idle("average()");
  const std::vector<bool> completed = begin(part);
  return completed.empty() ? finish().front() : completed.front();
}

std::size_t LowBitMean::bytes_per_pass() const noexcept {
  return impl_->bytes_per_pass();
}

double LowBitMean::wait_seconds() const noexcept {
  double seconds = impl_->waited;
  for (const auto& plan : impl_->plans)
    seconds += plan->exchange.wait_seconds();
  return seconds;
}

ConstView LowBitMean::worker_error() const noexcept {
  return std::as_const(impl_->worker).view();
}

Buffer LowBitMean::server_error() const {
  Buffer all(impl_->worker.size(), impl_->options.residual_dtype);
  for (const Impl::Cut& cut : impl_->cuts)
    if (cut.place == impl_->places.own)
      copy_values(of(impl_->server.view(), Impl::served_range(cut)),
                  of(all.view(), cut.range));
  return all;
}

std::vector<Range> LowBitMean::encoded() const {
  return impl_->ranges_of(
      [this](const Impl::Cut& cut) { return impl_->encodes(cut); });
}

std::vector<Range> LowBitMean::served() const {
  return impl_->ranges_of(
      [this](const Impl::Cut& cut) { return cut.place == impl_->places.own; });
}

void LowBitMean::load_errors(ConstView worker, ConstView server) {
  const Buffer& own = impl_->worker;
  impl_->require_idle("load_errors()");
  require_residual("the worker residual", worker, own.dtype(), own.size());
  require_residual("the server residual", server, own.dtype(), own.size());
  set_to_zero(impl_->worker.view());
  for (const Impl::Cut& cut : impl_->cuts) {
    if (impl_->encodes(cut))
      copy_values(of(worker, cut.range), of(impl_->worker.view(), cut.range));
    if (cut.place == impl_->places.own)
      copy_values(of(server, cut.range),
                  of(impl_->server.view(), Impl::served_range(cut)));
  }
}

}  // namespace thinwire::exchange
