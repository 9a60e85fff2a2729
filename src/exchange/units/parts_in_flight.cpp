// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/parts_in_flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/require.h"
#include "core/visit_floats.h"
#include "exchange/checks.h"
#include "exchange/wait_meter.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange {

namespace {

void fill_with_nan(View values) {
  visit_floats(values, [&](auto* to) {
    for (std::size_t i = 0; i < values.size(); ++i)
      store_rounded(std::numeric_limits<float>::quiet_NaN(), to + i);
  });
}

}  // namespace

PartsInFlight::PartsInFlight(const Route& route, const UnitResiduals& residuals,
                             std::size_t last_stage, Accepts accepts)
    : route_(route),
      all_(residuals.units()),
      last_stage_(last_stage),
      accepts_(accepts) {}

void PartsInFlight::check(const UnitPart& part) const {
  std::vector<bool> seen(all_.size());
  for (const auto* const ways : {&in_flight_, &completed_})
    for (const PartWay* const way : *ways)
      for (const std::size_t unit : way->units) seen[unit] = true;
  std::size_t size = 0;
  for (const std::size_t unit : part.units) {
    require(unit < all_.size() && !seen[unit], "Part.units",
            fmt::format("different numbers in [0, {}), none of which is in "
                        "flight",
                        all_.size()),
            unit);
    seen[unit] = true;
    size += all_[unit].range.size;
  }
  require(part.values.size() == size, "Part.values",
          fmt::format("of {} elements", size), part.values.size());
  require_loss_scale("loss_scale", part.loss_scale);
  require_float("Part.values", part.values.dtype());
}

void PartsInFlight::require_idle(std::string_view call) const {
  if (!in_flight_.empty())
    refuse(fmt::format("{} while a part is in flight", call));
}

PartWay& PartsInFlight::way_for(std::span<const std::size_t> wanted) {
  for (const auto& way : ways_)
    if (std::ranges::equal(way->units, wanted)) return *way;
  // Other divisions into parts that contain these units will not be used again.
  std::erase_if(ways_, [&](const auto& way) {
    const bool is_over = std::ranges::any_of(way->units, [&](auto unit) {
      return std::ranges::find(wanted, unit) != wanted.end();
    });
    if (is_over) waited_ += way->wait_seconds();
    return is_over;
  });
  return *ways_.emplace_back(make_way(wanted));
}

std::vector<bool> PartsInFlight::begin(const UnitPart& part) {
  check(part);
  if (route_.comm.size() == 1) return {true};
  return or_drop([&] {
    PartWay& way = way_for(part.units);
    if (in_flight_.empty()) begun_ = 0;
    in_flight_.push_back(&way);
    way.values_ = part.values;
    way.stage_ = 0;
    way.send(route_.groups != nullptr ? mean_of_host(part.values) : part.values,
             part);
    ++begun_;
    return advance_all();
  });
}

std::vector<bool> PartsInFlight::finish() {
  return or_drop([&] {
    std::vector<bool> completed;
    while (!in_flight_.empty()) {
      PartWay& youngest = *in_flight_.back();
      if (++youngest.stage_ < last_stage_) youngest.advance(youngest.stage_);
      const std::vector<bool> more = advance_all();
      completed.insert(completed.end(), more.begin(), more.end());
    }
    return completed;
  });
}

std::vector<bool> PartsInFlight::advance_all() {
  for (std::size_t k = in_flight_.size(); k-- > 0;) {
    PartWay& way = *in_flight_[k];
    if (k + 1 < in_flight_.size() && ++way.stage_ < last_stage_)
      way.advance(way.stage_);
  }
  std::vector<bool> completed;
  while (!in_flight_.empty() && in_flight_.front()->stage_ >= last_stage_)
    completed.push_back(complete_first());
  return completed;
}

bool PartsInFlight::complete_first() {
  PartWay& way = *in_flight_.front();
  const bool is_finite = way.complete();
  if (!is_finite) fill_with_nan(way.values_);
  if (accepts_steps())
    completed_.push_back(&way);
  else if (is_finite)
    way.accept();
  in_flight_.pop_front();
  return is_finite;
}

void PartsInFlight::end_step(bool counts) {
  require_idle("end_step()");
  if (counts)
    for (PartWay* const way : completed_) way->accept();
  completed_.clear();
}

void PartsInFlight::drop() noexcept {
  for (PartWay* const way : in_flight_) way->drop();
  in_flight_.clear();
  completed_.clear();
}

// Runs body(). If it throws, nothing is in flight afterwards.
template <class Body>
std::vector<bool> PartsInFlight::or_drop(Body&& body) {
  try {
    return body();
  } catch (...) {
    drop();
    throw;
  }
}

View PartsInFlight::mean_of_host(ConstView values) {
  if (host_mean_.size() < values.size())
    host_mean_ = Buffer(values.size(), DType::kFloat32);
  const View mean = host_mean_.view().subview(0, values.size());
  kernels::convert(values, mean);
  WaitMeter(waited_).waiting(
      [&] { route_.groups->inside->all_reduce(mean, comm::ReduceOp::kMean); });
  return mean;
}

double PartsInFlight::wait_seconds() const {
  double seconds = waited_;
  for (const auto& way : ways_) seconds += way->wait_seconds();
  return seconds;
}

}  // namespace thinwire::exchange
