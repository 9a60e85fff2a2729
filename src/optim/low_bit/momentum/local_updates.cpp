// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/local_updates.h"

#include <algorithm>
#include <utility>

#include "optim/checks.h"
#include "optim/saved_state.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/local_step.h"

namespace thinwire::optim {

using kernels::Signs;

LocalUpdates::LocalUpdates(LowBitModel& model, CompressedMomentum& momentum,
                           Denominator& denominator)
    : model_(model),
      momentum_(momentum),
      denominator_(denominator),
      interval_{.lrs = std::vector<double>(model.adam.num_groups()),
                .decay = std::vector<double>(model.adam.num_groups(), 1),
                .decay_taken = {}} {}

void LocalUpdates::begin(ConstView params) {
  origin_ = copy_of(params);
  accumulator_ = Buffer::of<float>(params.size());
}

void LocalUpdates::begin_anew(ConstView params) {
  if (origin_.empty()) return;
  kernels::convert(params, origin_.view());
  begin_interval();
}

void LocalUpdates::end() {
  origin_ = Buffer();
  accumulator_ = Buffer();
  begin_interval();
}

void LocalUpdates::count(const Coefficients& c) {
  for (std::size_t g = 0; g < c.size(); ++g) {
    const double lr = model_.adam.learning_rate(g);
    interval_.lrs[g] += lr * c[g].exp_avg_scale;
    interval_.decay[g] *= 1 - lr * c[g].decoupled_decay;
  }
  ++interval_.steps;
}

// ---- a local step
void LocalUpdates::step(const StepInput& in, const Coefficients& c,
                        const FinalRange& tell) {
  Buffer& exp_avg = model_.adam.exp_avg();
  if (exp_avg.empty()) exp_avg = Buffer::of<float>(model_.size());
  const auto update = [&](std::size_t b) {
    const Range& at = model_.block(b);
    const std::size_t group = model_.layout.block_group[b];
    const kernels::LocalStepArrays arrays{
        .params = in.params.as<float>().data() + at.offset,
        .origin = origin_.as<float>().data() + at.offset,
        .exp_avg = exp_avg.as<float>().data() + at.offset,
        .mean = momentum_.form.current(b).signs,
        .accumulated = accumulator_.as<float>().data() + at.offset,
        .from_zero = !interval_.accumulated,
        .denominator = denominator_.at(at.offset),
        .grads = in.grads.subview(at.offset, at.size),
        .active = momentum_.exchange.active(b),
        .low_precision = part_of(in.low_precision, at)};
    kernels::local_step(arrays, static_cast<float>(interval_.decay[group]),
                        c[group]);
  };
  model_.for_blocks(update, tell);
  momentum_.form.now_values();
  interval_.accumulated = true;
  interval_.momenta_differ = true;
  ++interval_.taken;
  interval_.decay_taken = interval_.decay;
}

// Marks the interval as begun, because ranks that took the step do so, and all
// ranks must agree on whether to sync.
void LocalUpdates::leave_out() {
  const auto u = accumulator_.as<float>();
  if (!interval_.accumulated) std::fill(u.begin(), u.end(), 0.0f);
  interval_.accumulated = true;
  interval_.momenta_differ = true;
}

void LocalUpdates::leave_out(std::span<const std::size_t> elements) {
  if (!interval_.accumulated) return;
  for (const std::size_t i : elements) accumulator_.as<float>()[i] = 0;
}

// ---- the sync
void LocalUpdates::sync(const StepInput& in, const Coefficients& c,
                        StepMeter& step) {
  keep_momentum_of_resting_groups(in.grads, c);
  step.adding_waits_of(momentum_.exchange.all(), [&](auto&) {
    exchange({in.params, in.low_precision, in.final_range},
             [&](std::size_t b) { return own_input(b, in.grads, c); });
  });
}

// Returns u d, in which this step's update is computed while it is read.
kernels::SignInput LocalUpdates::own_input(std::size_t b, View grads,
                                           const Coefficients& c) const {
  kernels::SignInput input =
      momentum_.form.input(b, grads, c[model_.layout.block_group[b]]);
  const std::size_t at = model_.block(b).offset;
  input.denominator = denominator_.at(at);
  if (interval_.accumulated)
    input.accumulated = accumulator_.as<float>().data() + at;
  return input;
}

void LocalUpdates::exchange(const Output& to, const Input& input) {
  exchange::SignExchange& all = momentum_.exchange.all();
  const auto apply = [&](std::size_t b, Signs mean) {
    apply_mean(b, mean, to.params, to.low_precision);
  };
  all.run(input, apply, model_.teller(to.tell));
  std::vector<float> units;  // u d = -lrs m, so m = u d / -lrs
  for (const std::size_t group : model_.layout.block_group)
    units.push_back(-static_cast<float>(interval_.lrs[group]));
  momentum_.form.set_units(std::move(units));
  if (some_group_rests()) {
    merge_momenta();
  } else {
    momentum_.form.keep_as_signs(all);
    interval_.momenta_differ = false;
  }
  begin_interval();
}

void LocalUpdates::apply_mean(std::size_t b, Signs mean, View params,
                              View low_precision) {
  const Range& at = model_.block(b);
  const std::size_t group = model_.layout.block_group[b];
  if (interval_.lrs[group] == 0) {  // the group does not move
    if (!low_precision.empty())
      kernels::convert(params.subview(at.offset, at.size),
                       part_of(low_precision, at));
    return;
  }
  kernels::sync_update(mean, momentum_.exchange.active(b),
                       {.params = params.as<float>().data() + at.offset,
                        .origin = origin_.as<float>().data() + at.offset,
                        .denominator = denominator_.at(at.offset),
                        .size = at.size,
                        .low_precision = part_of(low_precision, at)},
                       static_cast<float>(interval_.decay[group]));
}

void LocalUpdates::begin_interval() {
  interval_.accumulated = false;
  interval_.steps = 0;
  interval_.taken = 0;
  interval_.lrs.assign(interval_.lrs.size(), 0);
  interval_.decay.assign(interval_.decay.size(), 1);
}

bool LocalUpdates::some_group_rests() const {
  return std::any_of(interval_.lrs.begin(), interval_.lrs.end(),
                     [](double sum) { return sum == 0; });
}

bool LocalUpdates::some_group_moved() const {
  return std::any_of(interval_.lrs.begin(), interval_.lrs.end(),
                     [](double sum) { return sum > 0; });
}

// Keeps the momentum of groups whose learning rate was always 0, because m
// cannot be computed from their u.
void LocalUpdates::keep_momentum_of_resting_groups(ConstView grads,
                                                   const Coefficients& c) {
  if (!some_group_rests()) return;
  interval_.momenta_differ = true;
  momentum_.form.keep_as_values();
  for (const GroupRange& r : model_.layout.compressed)
    if (interval_.lrs[r.group] == 0)
      kernels::momentum(
          model_.adam.exp_avg().as<float>().data() + r.range.offset,
          grads.subview(r.range.offset, r.range.size), c[r.group]);
}

// Averages the momenta of groups whose learning rate was always 0. The exchange
// returns the sent part of their residuals, in hierarchical mode on one rank of
// each host.
void LocalUpdates::merge_momenta() {
  float* const m = model_.adam.exp_avg().as<float>().data();
  exchange::SignExchange& all = momentum_.exchange.all();
  std::vector<float> returned;
  for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
    const Range& at = model_.block(b);
    const std::uint32_t* const active = momentum_.exchange.active(b);
    if (interval_.lrs[model_.layout.block_group[b]] > 0) {
      kernels::sign_decode(momentum_.form.over_unit(all.mean(b), b), active,
                           m + at.offset, at.size);
      continue;
    }
    if (!all.encodes(b)) continue;
    returned.resize(at.size);
    kernels::sign_decode(all.mean(b), active, returned.data(), at.size);
    all.add_to_worker_error(b, returned.data(), 1);
  }
  momentum_.form.now_values();
}

// Adds the values that several ranks would send: u d and restored residuals.
void LocalUpdates::sync_alone(View params, View low_precision) {
  model_.for_blocks([&](std::size_t b) {
    const Range& at = model_.block(b);
    const auto sum =
        static_cast<float>(interval_.lrs[model_.layout.block_group[b]]);
    const auto of = [&](Buffer& values) {
      return values.as<float>().subspan(at.offset, at.size);
    };
    const auto p = params.as<float>().subspan(at.offset, at.size);
    const auto d = of(denominator_.values);
    std::vector<float> rest;
    if (!momentum_.restored.empty() && sum != 0) {
      rest = momentum_.restored.take(b, momentum_.exchange.active(b));
      for (std::size_t i = 0; i < at.size; ++i) p[i] += rest[i] / d[i];
      if (!low_precision.empty())
        kernels::convert(p, part_of(low_precision, at));
    }
    std::copy(p.begin(), p.end(), of(origin_).begin());
    if (sum == 0) return;
    for (std::size_t i = 0; i < at.size; ++i) {
      const float ud = of(accumulator_)[i] * d[i];
      of(model_.adam.exp_avg())[i] = -(rest.empty() ? ud : ud + rest[i]) / sum;
    }
  });
  if (!some_group_rests()) (void)momentum_.restored.release();
  begin_interval();
}

void LocalUpdates::synchronize(View params) {
  require_view("params", params, model_.size(), true, false);
  if (ranks_are_equal()) return;
  if (!model_.compresses()) {
    sync_alone(params, {});
    return;
  }
  Buffer ud = copy_of(accumulator_.view());
  const auto d = std::as_const(denominator_.values).as<float>();
  for (std::size_t i = 0; i < ud.size(); ++i) ud.as<float>()[i] *= d[i];
  if (some_group_rests()) momentum_.form.keep_as_values();
  exchange({params, {}, {}}, [&](std::size_t b) {
    return kernels::SignInput{.values = ud.as<float>().data() +
                                        model_.block(b).offset};
  });
}

// Repeats the arithmetic of kernels::local_step with the decay of the last step
// that this rank took. Steps left out since then did not change its parameters.
void LocalUpdates::repeat(View params) {
  if (params.empty()) return;
  require_view("params", params, model_.size(), true, false);
  if (!interval_.accumulated || interval_.taken == 0) return;
  const auto p = params.as<float>();
  const auto theta = origin_.as<float>();
  const auto u = accumulator_.as<float>();
  for_group_ranges(model_.pool, model_.layout.compressed,
                   [&](Range range, std::size_t group) {
                     const auto decay =
                         static_cast<float>(interval_.decay_taken[group]);
                     for (std::size_t i = range.offset; i < range.end(); ++i)
                       p[i] = theta[i] * decay + u[i];
                   });
}

void LocalUpdates::list(StateParts& parts, bool is_frozen) {
  Interval& now = interval_;
  const auto groups = [&](const ArrayPart& part, std::vector<double>& values) {
    parts.values(Axis::kGroup, part, values, now.lrs.size());
  };
  groups({.name = "lrs", .sign = Sign::kNotNegative}, now.lrs);
  groups({.name = "decay"}, now.decay);
  const bool accumulated = parts.integer({"accumulated"}, now.accumulated);
  parts.integer({"momenta_differ"}, now.momenta_differ);
  parts.count({"local_steps"}, now.steps);
  parts.count({.name = "local_steps_taken", .is_own = true}, now.taken);
  const std::vector<Range> whole = {{0, model_.size()}};
  if (is_frozen)
    parts.elements({.name = "origin", .ranges = whole, .is_parameters = true},
                   origin_);
  else
    parts.set(origin_, Buffer());
  if (is_frozen && accumulated)
    parts.elements({.name = "momentum_accumulator",
                    .ranges = whole,
                    .sharing = Sharing::kMean},
                   accumulator_);
  else if (parts.saved() != nullptr)
    parts.set(accumulator_, Buffer::of<float>(is_frozen ? model_.size() : 0));
  if (parts.has("decay_taken", is_frozen && accumulated))
    groups({.name = "decay_taken", .sharing = Sharing::kOwn},
           parts.saved() == nullptr && now.taken == 0 ? now.decay
                                                      : now.decay_taken);
  else
    parts.then([&now] { now.decay_taken = now.decay; });
  parts.then([this] { momentum_.form.set_units({}); });
}

}  // namespace thinwire::optim
