// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/require.h"
#include "core/set_to_zero.h"
#include "exchange/checks.h"
#include "exchange/places.h"
#include "exchange/records.h"
#include "exchange/two_phase_exchange.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::exchange {

namespace {

constexpr std::size_t kMostInBlock = 1024;

ConstView floats(const float* values, std::size_t size) {
  return {values, size, DType::kFloat32};
}

void copy_values(ConstView from, View to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.bytes());
}

void require_array(ConstView given, DType dtype, std::size_t size,
                   const char* name) {
  if (given.dtype() != dtype || given.size() != size)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("{} must be {} of {} elements, got {} of {}", name,
                            to_string(dtype), size, to_string(given.dtype()),
                            given.size()));
}

}  // namespace

struct LowBitMean::Impl {
  // A part as it was cut, with its way through the ranks.
  struct Plan {
    Plan(comm::Communicator& comm, const comm::HostGroups* groups,
         ThreadPool& pool, BlockLayout&& made)
        : layout(std::move(made)),
          exchange(comm, groups, pool, layout, /*keeps_previous=*/false) {}

    std::vector<std::size_t> units;
    BlockLayout layout;  // values: of the part; residual: of the flat array
    TwoPhaseExchange exchange;
    std::vector<std::size_t> fresh_at;  // per served block, in server.fresh
  };

  // Residuals of a bucket replace the old ones only if all of it is finite.
  struct Side {
    [[nodiscard]] View kept(std::size_t at, std::size_t size) {
      return values.view().subview(at, size);
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
    std::size_t block = 0;
    const auto world = static_cast<std::size_t>(comm.size());
    for (const std::size_t unit_size : sizes) {
      units.push_back({offset, unit_size});
      first_block.push_back(block);
      for (const std::size_t end = offset + unit_size; offset < end; ++block) {
        const std::size_t size = std::min(kMostInBlock, end - offset);
        const std::size_t record = record_bytes(size, options.bits);
        const std::size_t place = block % world;
        if (place >= places.first && place < places.end()) {
          encoded.push_back({offset, size});
          bytes += place == places.own ? (places.workers - 1) * record : record;
        }
        if (place == places.own) {
          own_blocks[offset] = {served, size};
          served += size;
        }
        offset += size;
      }
    }
    worker.values = Buffer(offset, options.residual_dtype);
    server.values = Buffer(served, options.residual_dtype);
  }

  comm::Communicator& comm;
  ThreadPool& pool;
  const LowBitMeanOptions options;
  const comm::HostGroups* groups;  // null: flat
  const Places places;
  std::vector<Range> units;              // of the flat array
  std::vector<std::size_t> first_block;  // per unit, number in the flat array
  // Offsets in the flat array, and where server.values has the block.
  std::map<std::size_t, Range> own_blocks;
  std::vector<Range> encoded;  // of the flat array; flat: all blocks
  Side worker;
  Side server;
  Buffer host_mean;  // of a part, unless flat
  std::size_t bytes = 0;
  double waited = 0;  // by plans that are gone, and inside hosts
  std::vector<std::unique_ptr<Plan>> plans;

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
    require(part.loss_scale > 0 && std::isfinite(part.loss_scale),
            "Part.loss_scale", "finite and > 0", part.loss_scale);
    const DType dtype = part.values.dtype();
    require(dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
                dtype == DType::kBFloat16,
            "Part.values", "fp32, fp16 or bf16", to_string(dtype));
  }

  Plan& plan_for(std::span<const std::size_t> wanted) {
    for (const auto& plan : plans)
      if (std::ranges::equal(plan->units, wanted)) return *plan;
    // Those of parts that are cut otherwise now are of no more use.
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
    const auto world = static_cast<std::size_t>(comm.size());
    const std::size_t most =
        bucket_rule(worker.values.size(), comm.size(), options.bits);
    std::size_t in_bucket = most;
    std::size_t at = 0;
    for (const std::size_t unit : wanted) {
      std::size_t block = first_block[unit];
      for (std::size_t from = units[unit].offset; from < units[unit].end();
           ++block) {
        const std::size_t size =
            std::min(kMostInBlock, units[unit].end() - from);
        if (in_bucket + size > most) {
          buckets.emplace_back();
          in_bucket = 0;
        }
        buckets.back().push_back(
            {{at, size}, {from, size}, 0, static_cast<int>(block % world)});
        in_bucket += size;
        from += size;
        at += size;
      }
    }
    auto plan = std::make_unique<Plan>(
        comm, groups, pool,
        BlockLayout::of_blocks(std::move(buckets), comm.size(), options.bits));
    plan->units.assign(wanted.begin(), wanted.end());
    std::size_t fresh = 0;
    for (const Block& block : plan->layout.blocks()) {
      plan->fresh_at.push_back(fresh);
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

  // Its residual, of a block that this rank serves.
  [[nodiscard]] View served(const Block& block) {
    const Range& at = own_blocks.at(block.residual.offset);
    return server.kept(at.offset, at.size);
  }

  void encode(Plan& plan, Range blocks, const Part& part) {
    const auto reciprocal = static_cast<float>(1 / part.loss_scale);
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      const Range& values = plan.layout.blocks()[b].values;
      const Range& residual = plan.layout.blocks()[b].residual;
      std::uint8_t* const record = plan.exchange.record(b);
      const kernels::QuantizedSum sum{
          .values = part.values.subview(values.offset, values.size),
          .factor = reciprocal,
          .residual = worker.kept(residual.offset, values.size),
          .error = worker.renewed(values.offset, values.size)};
      set_scale(record,
                kernels::quantize_sum(sum, options.bits, words_of(record)));
    }
  }

  void average(Plan& plan, const Received& from, Range blocks) {
    std::array<float, kMostInBlock> mean;
    std::vector<kernels::Quantized> sent(places.workers);
    const auto inverse_count =
        static_cast<float>(1.0 / static_cast<double>(sent.size()));
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      const Block& block = plan.layout.blocks()[b];
      const std::size_t size = block.values.size;
      for (std::size_t r = 0; r < sent.size(); ++r)
        sent[r] = quantized_in(from.record(r, b));
      kernels::quantized_average(sent, options.bits, inverse_count, nullptr,
                                 mean.data(), size);
      std::uint8_t* const record = plan.exchange.record(b);
      const kernels::QuantizedSum sum{
          .values = floats(mean.data(), size),
          .residual = served(block),
          .error = server.renewed(plan.fresh_at[b], size)};
      set_scale(record,
                kernels::quantize_sum(sum, options.bits, words_of(record)));
    }
  }

  // Returns whether the results are finite.
  bool deliver(Plan& plan, Range blocks, const Part& part) {
    std::array<float, kMostInBlock> mean;
    const auto scale = static_cast<float>(part.loss_scale);
    bool is_finite = true;
    for (std::size_t b = blocks.offset; b < blocks.end(); ++b) {
      const Range& values = plan.layout.blocks()[b].values;
      const std::uint8_t* const record = plan.exchange.result(b);
      is_finite = is_finite && std::isfinite(scale_of(record));
      kernels::dequantize(quantized_in(record), options.bits, nullptr,
                          mean.data(), values.size);
      for (std::size_t i = 0; i < values.size; ++i) mean[i] *= scale;
      kernels::convert(floats(mean.data(), values.size),
                       part.values.subview(values.offset, values.size));
    }
    return is_finite;
  }

  bool average(const Part& part) {
    Plan& plan = plan_for(part.units);
    std::atomic<bool> is_finite = true;
    Part encodes = part;
    if (groups != nullptr) encodes.values = mean_of_host(part.values);
    plan.exchange.run({.encode = [&](Range b) { encode(plan, b, encodes); },
                       .average = [&](const Received& from,
                                      Range b) { average(plan, from, b); },
                       .deliver =
                           [&](Range b) {
                             if (!deliver(plan, b, part)) is_finite = false;
                           }});
    const std::span<const Block> blocks = plan.layout.blocks();
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
                  worker.kept(block.residual.offset, block.values.size));
    if (serves(block))
      copy_values(server.renewed(plan.fresh_at[b], block.values.size),
                  served(block));
  }

  View mean_of_host(ConstView values) {
    const View mean = host_mean.view().subview(0, values.size());
    kernels::convert(values, mean);
    const auto begin = std::chrono::steady_clock::now();
    groups->inside->all_reduce(mean, comm::ReduceOp::kMean);
    waited +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    return mean;
  }

  static void withhold(View values) {
    std::array<float, kMostInBlock> marked;
    marked.fill(std::numeric_limits<float>::quiet_NaN());
    kernels::convert(floats(marked.data(), values.size()), values);
  }
};

LowBitMean::LowBitMean(comm::Communicator& comm, ThreadPool& pool,
                       std::span<const std::size_t> sizes,
                       const LowBitMeanOptions& options,
                       const comm::HostGroups* groups) {
  require_groups(comm, groups);
  require(options.bits == 4 || options.bits == 8, "LowBitMeanOptions.bits",
          "4 or 8", options.bits);
  require(options.residual_dtype == DType::kFloat32 ||
              options.residual_dtype == DType::kBFloat16,
          "LowBitMeanOptions.residual_dtype", "fp32 or bf16",
          to_string(options.residual_dtype));
  impl_ = std::make_unique<Impl>(comm, pool, sizes, options, groups);
}

LowBitMean::~LowBitMean() = default;

bool LowBitMean::average(const Part& part) {
  impl_->check(part);
  return impl_->comm.size() == 1 || impl_->average(part);
}

std::size_t LowBitMean::bytes_per_pass() const noexcept { return impl_->bytes; }

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
  for (const auto& [offset, at] : impl_->own_blocks)
    copy_values(impl_->server.kept(at.offset, at.size),
                all.view().subview(offset, at.size));
  return all;
}

void LowBitMean::load_errors(ConstView worker, ConstView server) {
  const Buffer& own = impl_->worker.values;
  require_array(worker, own.dtype(), own.size(), "the worker residual");
  require_array(server, own.dtype(), own.size(), "the server residual");
  set_to_zero(impl_->worker.values.view());
  for (const Range& range : impl_->encoded)
    copy_values(worker.subview(range.offset, range.size),
                impl_->worker.kept(range.offset, range.size));
  for (const auto& [offset, at] : impl_->own_blocks)
    copy_values(server.subview(offset, at.size),
                impl_->server.kept(at.offset, at.size));
}

}  // namespace thinwire::exchange
