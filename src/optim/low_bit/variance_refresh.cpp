// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/variance_refresh.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "optim/saved_state.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;

// v is corrected for its bias once, here. A refresh takes the momentum as it
// is, where an exchange masks it.
void VarianceRefresh::begin(std::int64_t step) {
  if (!is_on()) return;
  const auto m = model_.adam.exp_avg().as<float>();
  for (std::size_t i = 0; i < m.size(); ++i)
    if (!momentum_.takes_part(i)) m[i] = 0;
  const auto v = model_.adam.exp_avg_sq().as<float>();
  for_group_ranges(
      model_.pool, model_.layout.compressed,
      [&](Range range, std::size_t group) {
        const float scale =
            model_.adam.coefficients(group, step, 1).exp_avg_sq_scale;
        for (std::size_t i = range.offset; i < range.end(); ++i) v[i] *= scale;
      });
}

// The gradient travels in 4 bits; what rounding takes from it is missing in the
// momentum, so it joins the momentum's residuals.
void VarianceRefresh::run(const StepInput& in, const Coefficients& c,
                          StepMeter& step) {
  momentum_.keep_as_values();
  const auto of_group = [&](std::size_t b) -> const AdamCoefficients& {
    return c[model_.layout.block_group[b]];
  };
  if (!model_.compresses()) {
    model_.for_blocks([&](std::size_t b) {
      std::vector<float> g(model_.block(b).size);
      own_gradient(b, in, of_group(b), g.data());
      apply(b, g.data(), in, of_group(b));
    });
    return;
  }
  exchange::CompressedAllReduce& residuals = momentum_.exchange();
  step.compressed(exchange(), [&](auto& all) {
    all.run(
        [&](std::size_t b, float* g) { own_gradient(b, in, of_group(b), g); },
        [&](std::size_t b, const float* lost) {
          residuals.add_to_worker_error(b, lost, of_group(b).one_minus_beta1);
        },
        [&](std::size_t b, const float* lost) {
          residuals.add_to_server_error(b, lost, of_group(b).one_minus_beta1);
        },
        [&](std::size_t b, const float* mean) {
          apply(b, mean, in, of_group(b));
        });
  });
}

exchange::QuantizedAllReduce& VarianceRefresh::exchange() {
  if (!exchange_)
    exchange_ = std::make_unique<exchange::QuantizedAllReduce>(
        model_.comm, model_.pool, model_.layout.units,
        exchange::QuantizedAllReduceOptions{
            .blocks = {.world_size = model_.comm.size(),
                       .bucket_elements =
                           model_.settings.exchange.bucket_elements,
                       .bits = 4},
            .keeps_errors = false},
        model_.groups.get());
  exchange_->set_active(momentum_.active_mask());
  return *exchange_;
}

void VarianceRefresh::own_gradient(std::size_t b, const StepInput& in,
                                   const AdamCoefficients& c, float* g) const {
  const Range& at = model_.block(b);
  kernels::convert(model_.gradient(b, in.grads), std::span(g, at.size));
  for (std::size_t i = 0; i < at.size; ++i)
    g[i] = momentum_.takes_part(at.offset + i) ? g[i] * c.grad_scale : 0;
}

// m <- beta1 m + (1 - beta1) g, v alike, d of v, p moved by m / d.
void VarianceRefresh::apply(std::size_t b, const float* g, const StepInput& in,
                            AdamCoefficients c) {
  const Range& at = model_.block(b);
  const AdamOptions group =
      model_.adam.group_options(model_.layout.block_group[b]);
  const double beta2 = std::pow(group.beta2, static_cast<double>(every_));
  c.grad_scale = 1;
  c.beta2 = static_cast<float>(beta2);
  c.one_minus_beta2 = static_cast<float>(1 - beta2);
  c.exp_avg_sq_scale = 1;
  update_variance(b, g, c);
  kernels::FrozenUpdateArrays arrays =
      CompressedMomentum::arrays(at, in, denominator_.values);
  arrays.exp_avg = momentum_.values(b).values;
  kernels::frozen_update(arrays, c);
}

// v has not moved since the last refresh: it decays for all of the steps since,
// but only where a gradient says how far: rows of rare tokens have none in
// most.
void VarianceRefresh::update_variance(std::size_t b, const float* g,
                                      const AdamCoefficients& c) {
  const Range& at = model_.block(b);
  float* const m = model_.adam.exp_avg().as<float>().data() + at.offset;
  float* const v = model_.adam.exp_avg_sq().as<float>().data() + at.offset;
  std::array<float, 1024> before;  // blocks are no longer
  std::copy_n(v, at.size, before.begin());
  kernels::moments(m, v, std::span(g, at.size), c);
  for (std::size_t i = 0; i < at.size; ++i)
    if (g[i] == 0) v[i] = before[i];
  kernels::denominator(v, denominator_.at(at.offset), at.size, c);
  denominator_.refit(b);
  keep_above_first(at);
}

void VarianceRefresh::admit(std::span<const std::size_t> elements) {
  if (!is_on()) return;
  const auto v = model_.adam.exp_avg_sq().as<float>();
  for (const std::size_t i : elements) {
    const float d = *denominator_.at(i);
    v[i] = d * d;
    first_[i] = d;
  }
}

// Of elements that were late, no denominator falls below what it began with.
void VarianceRefresh::keep_above_first(Range at) {
  for (auto e = first_.lower_bound(at.offset);
       e != first_.end() && e->first < at.end(); ++e) {
    float& d = *denominator_.at(e->first);
    d = std::max(d, e->second);
  }
}

void VarianceRefresh::add_to(State& state) const {
  if (first_.empty()) return;
  std::vector<std::size_t> elements;
  Buffer values = Buffer::of<float>(first_.size());
  for (const auto& [element, d] : first_) {
    values.as<float>()[elements.size()] = d;
    elements.push_back(element);
  }
  add_to_elements(state, "revived_denominators", Sharing::kSame, elements,
                  std::move(values));
}

VarianceRefresh::FirstDenominators VarianceRefresh::read(
    const StateDict& state) const {
  FirstDenominators first;
  constexpr const char* kName = "revived_denominators";
  if (!state.has_array(kName)) return first;
  const auto elements = saved_elements(state, kName, model_.size());
  const auto values =
      saved_values<float>(state, kName, elements.size(), Sign::kPositive);
  for (std::size_t i = 0; i < elements.size(); ++i)
    first.emplace(elements[i], values[i]);
  return first;
}

}  // namespace thinwire::optim
