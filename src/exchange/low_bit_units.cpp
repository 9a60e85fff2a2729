// SPDX-License-Identifier: Apache-2.0
#include "exchange/low_bit_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/ranges.h"
#include "core/require.h"
#include "core/set_to_zero.h"
#include "core/visit_floats.h"
#include "exchange/checks.h"
#include "exchange/wait_meter.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange {

namespace {

void copy_values(ConstView from, View to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.bytes());
}

template <class AnyView>
AnyView of(AnyView whole, Range at) {
  return whole.subview(at.offset, at.size);
}

void fill_with_nan(View values) {
  visit_floats(values, [&](auto* to) {
    for (std::size_t i = 0; i < values.size(); ++i)
      store_rounded(std::numeric_limits<float>::quiet_NaN(), to + i);
  });
}

}  // namespace

LowBitUnits::LowBitUnits(const Route& route, ThreadPool& pool,
                         std::span<const std::size_t> sizes,
                         const LowBitMeanOptions& options)
    : route_(route),
      pool_(pool),
      options_(options),
      codec_(codec_of(options.bits)),
      places_(route.comm, route.groups) {
  std::size_t offset = 0;
  std::size_t served = 0;
  for (const std::size_t size : sizes) {
    const std::size_t first = cuts_.size();
    for (const std::size_t end = offset + size; offset < end;) {
      const Range range{offset, std::min(kernels::kMostSummed, end - offset)};
      cuts_.push_back(
          {range, cuts_.size() % static_cast<std::size_t>(route.comm.size()),
           served});
      if (serves(cuts_.back())) served += range.size;
      offset = range.end();
    }
    units_.push_back({size, {first, cuts_.size() - first}});
  }
  worker_ = Buffer(offset, options.residual_dtype);
  server_ = Buffer(served, options.residual_dtype);
}

// ---- parts

void LowBitUnits::check(const LowBitMean::Part& part) const {
  std::vector<bool> seen(units_.size());
  for (const Plan* const plan : in_flight_)
    for (const std::size_t unit : plan->units) seen[unit] = true;
  std::size_t size = 0;
  for (const std::size_t unit : part.units) {
    require(unit < units_.size() && !seen[unit], "Part.units",
            fmt::format("different numbers in [0, {}), none of which is in "
                        "flight",
                        units_.size()),
            unit);
    seen[unit] = true;
    size += units_[unit].size;
  }
  require(part.values.size() == size, "Part.values",
          fmt::format("of {} elements", size), part.values.size());
  require_loss_scale("loss_scale", part.loss_scale);
  require_float("Part.values", part.values.dtype());
}

void LowBitUnits::require_idle(std::string_view call) const {
  if (!in_flight_.empty())
    refuse(fmt::format("{} while a part is in flight", call));
}

LowBitUnits::Plan& LowBitUnits::plan_for(std::span<const std::size_t> wanted) {
  for (const auto& plan : plans_)
    if (std::ranges::equal(plan->units, wanted)) return *plan;
  // Plans of other parts with the same units will not be used again.
  std::erase_if(plans_, [&](const auto& plan) {
    const bool is_over = std::ranges::any_of(plan->units, [&](auto unit) {
      return std::ranges::find(wanted, unit) != wanted.end();
    });
    if (is_over) waited_ += plan->exchange->wait_seconds();
    return is_over;
  });
  return *plans_.emplace_back(make_plan(wanted));
}

std::unique_ptr<LowBitUnits::Plan> LowBitUnits::make_plan(
    std::span<const std::size_t> wanted) {
  std::vector<std::vector<Block>> buckets;
  const std::size_t most =
      bucket_rule(worker_.size(), route_.comm.size(), options_.bits);
  std::size_t in_bucket = most;
  std::size_t at = 0;
  for (const std::size_t unit : wanted)
    for (std::size_t k = units_[unit].cuts.offset; k < units_[unit].cuts.end();
         ++k) {
      const Cut& cut = cuts_[k];
      if (in_bucket + cut.range.size > most) {
        buckets.emplace_back();
        in_bucket = 0;
      }
      buckets.back().push_back(
          {{at, cut.range.size}, cut.range, static_cast<int>(cut.place)});
      in_bucket += cut.range.size;
      at += cut.range.size;
    }
  BlockLayout layout =
      BlockLayout::of_blocks(std::move(buckets), route_.comm.size());
  std::vector<Range> encoded;
  std::vector<Range> served;
  for (const Block& block : layout.blocks()) {
    const Cut& cut =
        *std::ranges::lower_bound(cuts_, block.residual.offset, {},
                                  [](const Cut& c) { return c.range.offset; });
    encoded.push_back(encodes(cut) ? cut.range : Range());
    served.push_back(serves(cut) ? cut.in_server() : Range());
  }
  // The layout's address is that of its plan.
  auto plan = std::unique_ptr<Plan>(
      new Plan{{wanted.begin(), wanted.end()}, std::move(layout), nullptr});
  plan->exchange = std::make_unique<LowBitExchange>(
      route_, pool_, plan->layout, codec_, Pipeline::Options(),
      Residuals(ResidualSide(worker_.view(), std::move(encoded)),
                ResidualSide(server_.view(), std::move(served))));
  return plan;
}

std::vector<bool> LowBitUnits::begin(const LowBitMean::Part& part) {
  check(part);
  if (route_.comm.size() == 1) return {true};
  return or_drop([&] {
    Plan& plan = plan_for(part.units);
    if (in_flight_.empty()) begun_ = 0;
    in_flight_.push_back(&plan);
    send(plan, part);
    std::vector<bool> completed;
    if (in_flight_.size() > 1) in_flight_.rbegin()[1]->exchange->queue_rest();
    if (in_flight_.size() > 2) completed.push_back(complete_first());
    return completed;
  });
}

void LowBitUnits::send(Plan& plan, const LowBitMean::Part& part) {
  const ConstView x =
      route_.groups != nullptr ? mean_of_host(part.values) : part.values;
  LowBitExchange& exchange = *plan.exchange;
  Fresh& fresh = fresh_[begun_++ % fresh_.size()];
  exchange.residuals.worker.write_to(fresh.worker);
  exchange.residuals.server.write_to(fresh.server);
  exchange.begin(
      [&plan, x](std::size_t b) {
        return of(x, plan.layout.blocks()[b].values);
      },
      static_cast<float>(1 / part.loss_scale));
  plan.values = part.values;
  exchange.write_to(
      {.values = part.values, .scale = static_cast<float>(part.loss_scale)});
  exchange.ready_all();
}

std::vector<bool> LowBitUnits::finish() {
  return or_drop([&] {
    std::vector<bool> completed;
    if (!in_flight_.empty()) in_flight_.back()->exchange->queue_rest();
    while (!in_flight_.empty()) completed.push_back(complete_first());
    return completed;
  });
}

bool LowBitUnits::complete_first() {
  Plan& plan = *in_flight_.front();
  const bool is_finite = plan.exchange->finish();
  if (is_finite)
    plan.exchange->residuals.accept(pool_);
  else
    fill_with_nan(plan.values);
  in_flight_.pop_front();
  return is_finite;
}

// Runs body(). If it throws, nothing is in flight afterwards.
template <class Body>
std::vector<bool> LowBitUnits::or_drop(Body&& body) {
  try {
    return body();
  } catch (...) {
    for (Plan* const plan : in_flight_) plan->exchange->drop();
    in_flight_.clear();
    throw;
  }
}

View LowBitUnits::mean_of_host(ConstView values) {
  if (host_mean_.size() < values.size())
    host_mean_ = Buffer(values.size(), DType::kFloat32);
  const View mean = host_mean_.view().subview(0, values.size());
  kernels::convert(values, mean);
  WaitMeter(waited_).waiting(
      [&] { route_.groups->inside->all_reduce(mean, comm::ReduceOp::kMean); });
  return mean;
}

// ---- what it sends and keeps

std::size_t LowBitUnits::bytes_per_pass() const {
  std::size_t bytes = 0;
  for (const Cut& cut : cuts_)
    if (encodes(cut))
      bytes += codec_.record_bytes(cut.range.size) *
               (serves(cut) ? places_.workers - 1 : 1);
  return bytes;
}

double LowBitUnits::wait_seconds() const {
  double seconds = waited_;
  for (const auto& plan : plans_) seconds += plan->exchange->wait_seconds();
  return seconds;
}

std::vector<Range> LowBitUnits::encoded() const {
  std::vector<Range> ranges;
  for (const Cut& cut : cuts_)
    if (encodes(cut)) append_joined(ranges, cut.range);
  return ranges;
}

std::vector<Range> LowBitUnits::served() const {
  std::vector<Range> ranges;
  for (const Cut& cut : cuts_)
    if (serves(cut)) append_joined(ranges, cut.range);
  return ranges;
}

Buffer LowBitUnits::server_error() const {
  Buffer all(worker_.size(), options_.residual_dtype);
  for (const Cut& cut : cuts_)
    if (serves(cut))
      copy_values(of(server_.view(), cut.in_server()),
                  of(all.view(), cut.range));
  return all;
}

void LowBitUnits::load_errors(ConstView worker, ConstView server) {
  require_idle("load_errors()");
  require_residual("the worker residual", worker, worker_.dtype(),
                   worker_.size());
  require_residual("the server residual", server, worker_.dtype(),
                   worker_.size());
  set_to_zero(worker_.view());
  for (const Cut& cut : cuts_) {
    if (encodes(cut))
      copy_values(of(worker, cut.range), of(worker_.view(), cut.range));
    if (serves(cut))
      copy_values(of(server, cut.range), of(server_.view(), cut.in_server()));
  }
}

}  // namespace thinwire::exchange
