// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
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

}  // namespace

struct LowBitMean::Impl {
  // A block of the flat array.
  struct Cut {
    Range range;
    std::size_t place;   // its server
    std::size_t served;  // its first element in server.values, if served here
  };
  struct Unit {
    std::size_t size;
    Range cuts;
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
    std::vector<std::size_t> fresh_at;  // per served block, in server.fresh
    std::vector<Range> served;          // per served block, in server.values
  };

  // Residuals of a bucket replace the old ones only if all of it is finite.
  struct Side {
    [[nodiscard]] View kept(Range at) {
      return values.view().subview(at.offset, at.size);
    }
    [[nodiscard]] View renewed(std::size_t at, std::size_t size) {
      return fresh.view().subview(at, size);
    }
    void need(std::size_t size) {
      if (fresh.size() < size) fresh = Buffer(size, values.dtype());
    }

    Buffer values;
    Buffer fresh;
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
    worker.values = Buffer(offset, options.residual_dtype);
    server.values = Buffer(served, options.residual_dtype);
  }

  comm::Communicator& comm;
  ThreadPool& pool;
  const LowBitMeanOptions options;
  const comm::HostGroups* groups;  // null: flat
  const Places places;
  std::vector<Cut> cuts;
  std::vector<Unit> units;
  Side worker;
  Side server;
  Buffer host_mean;   // of a part, unless flat
  double waited = 0;  // by plans that are gone, and inside hosts
  std::vector<std::unique_ptr<Plan>> plans;

  [[nodiscard]] bool encodes(const Cut& cut) const {
    return places.first <= cut.place && cut.place < places.end();
  }
  [[nodiscard]] Range served_range(const Cut& cut) const {
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
    std::size_t size = 0;
    for (const std::size_t unit : part.units) {
      require(unit < units.size() && !seen[unit], "Part.units",
              fmt::format("different numbers in [0, {})", units.size()), unit);
      seen[unit] = true;
      size += units[unit].size;
    }
    require(part.values.size() == size, "Part.values",
            fmt::format("of {} elements", size), part.values.size());
    require_loss_scale("loss_scale", part.loss_scale);
    require_float("Part.values", part.values.dtype());
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
        bucket_rule(worker.values.size(), comm.size(), options.bits);
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
    std::size_t fresh = 0;
    for (const Block& block : plan->layout.blocks()) {
      plan->fresh_at.push_back(fresh);
      plan->served.push_back(served_range(*std::ranges::lower_bound(
          cuts, block.residual.offset, {},
          [](const Cut& cut) { return cut.range.offset; })));
      if (serves(block)) fresh += block.values.size;
    }
    worker.need(at);
    if (groups != nullptr && host_mean.size() < at)
      host_mean = Buffer(at, DType::kFloat32);
    server.need(fresh);
    return plan;
  }

  [[nodiscard]] bool serves(const Block& block) const {
    return static_cast<std::size_t>(block.server) == places.own;
  }

  // Decodes a block to the part, and returns whether it is finite.
  [[nodiscard]] bool deliver(const Plan& plan, std::size_t b,
                             const Part& part) {
    std::array<float, kMostInBlock> values;
    const Range& at = plan.layout.blocks()[b].values;
    const auto mean = std::span(values).first(at.size);
    const float step = read_quantized(plan.exchange, options.bits, b, mean);
    const auto scale = static_cast<float>(part.loss_scale);
    for (float& value : mean) value *= scale;
    // A code may lie above the largest finite gradient.
    if (std::isfinite(step)) saturate(mean, part.values.dtype());
    kernels::convert(mean, part.values.subview(at.offset, at.size));
    return std::isfinite(step);
  }

  bool average(const Part& part) {
    Plan& plan = plan_for(part.units);
    const std::span<const Block> blocks = plan.layout.blocks();
    std::atomic<bool> is_finite = true;
    const View encoded =
        groups != nullptr ? mean_of_host(part.values) : part.values;
    const auto own = [&](std::size_t b) {
      const Range& at = blocks[b].values;
      return kernels::QuantizedSum{
          .values = encoded.subview(at.offset, at.size),
          .factor = static_cast<float>(1 / part.loss_scale),
          .residual = worker.kept(blocks[b].residual),
          .error = worker.renewed(at.offset, at.size)};
    };
    const auto served = [&](std::size_t b) {
      const Range& at = plan.served[b];
      return kernels::QuantizedSum{
          .residual = server.kept(at),
          .error = server.renewed(plan.fresh_at[b], at.size)};
    };
    plan.exchange.run(quantized_steps(
        plan.exchange, options.bits,
        {.worker = own, .server = served, .deliver = [&](std::size_t b) {
           if (!deliver(plan, b, part)) is_finite = false;
         }}));
    pool.for_ranges(blocks.size(), 16, [&](std::size_t b, std::size_t end) {
      for (; b < end; ++b)
        is_finite ? keep(plan, b)
                  : withhold(part.values.subview(blocks[b].values.offset,
                                                 blocks[b].values.size));
    });
    return is_finite;
  }

  void keep(const Plan& plan, std::size_t b) {
    const Block& block = plan.layout.blocks()[b];
    if (places.has(block))
      copy_values(worker.renewed(block.values.offset, block.values.size),
                  worker.kept(block.residual));
    if (serves(block))
      copy_values(server.renewed(plan.fresh_at[b], block.values.size),
                  server.kept(plan.served[b]));
  }

  View mean_of_host(ConstView values) {
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

bool LowBitMean::average(const Part& part) {
  impl_->check(part);
  return impl_->comm.size() == 1 || impl_->average(part);
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
  return std::as_const(impl_->worker.values).view();
}

Buffer LowBitMean::server_error() const {
  Buffer all(impl_->worker.values.size(), impl_->options.residual_dtype);
  for (const Impl::Cut& cut : impl_->cuts)
    if (cut.place == impl_->places.own)
      copy_values(impl_->server.kept(impl_->served_range(cut)),
                  all.view().subview(cut.range.offset, cut.range.size));
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
  const Buffer& own = impl_->worker.values;
  require_residual("the worker residual", worker, own.dtype(), own.size());
  require_residual("the server residual", server, own.dtype(), own.size());
  set_to_zero(impl_->worker.values.view());
  const auto part = [](ConstView of, const Range& at) {
    return of.subview(at.offset, at.size);
  };
  for (const Impl::Cut& cut : impl_->cuts) {
    if (impl_->encodes(cut))
      copy_values(part(worker, cut.range), impl_->worker.kept(cut.range));
    if (cut.place == impl_->places.own)
      copy_values(part(server, cut.range),
                  impl_->server.kept(impl_->served_range(cut)));
  }
}

}  // namespace thinwire::exchange
