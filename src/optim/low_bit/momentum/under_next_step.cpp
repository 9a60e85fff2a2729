// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/under_next_step.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "optim/checks.h"
#include "optim/parameters_differ.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

constexpr const char* kLocalParams = "local_params";

}  // namespace

UnderNextStep::~UnderNextStep() {
  try {
    (void)arrive();
  } catch (const Error& error) {
    momentum_.exchange.drop();
    log(LogLevel::kWarning,
        std::string("the exchange of the last step was dropped, and parameters "
                    "differ between ranks: ") +
            error.what());
  }
}

// ---- a step

void UnderNextStep::begin(const StepInput& in, const Coefficients& c) {
  if (theta_.empty()) theta_ = Buffer::of<float>(model_.size());
  if (!differs_) kernels::convert(in.params, theta_.view());
  for (const Range& exact : model_.layout.exact)
    kernels::convert(in.params.subview(exact.offset, exact.size),
                     theta_.view().subview(exact.offset, exact.size));
  differs_ = true;
  restored_ = Buffer();
  params_ = in.params;
  coefficients_ = c;
  const auto blocks = model_.layout.blocks.blocks();
  if (model_.groups)  // the exchange does this for its own blocks
    model_.for_blocks([&](std::size_t b) {
      if (!model_.places.has(blocks[b])) take_own_step(b, in);
    });
  momentum_.exchange.launch(
      [&](std::size_t b) {
        take_own_step(b, in);
        return momentum_.form.input(b, in.grads,
                                    c[model_.layout.block_group[b]]);
      },
      in.final_range);
}

void UnderNextStep::take_own_step(std::size_t b, const StepInput& in) const {
  const Range& at = model_.block(b);
  const kernels::AdamCoefficients& c =
      coefficients_[model_.layout.block_group[b]];
  const std::uint32_t* const active = momentum_.exchange.active(b);
  std::array<float, 1024> m;  // the size of the longest block
  const kernels::MomentumForm before = momentum_.form.current(b);
  if (before.values != nullptr)
    std::copy_n(before.values, at.size, m.data());
  else
    kernels::sign_decode(before.signs, active, m.data(), at.size);
  kernels::momentum(m.data(), model_.gradient(b, in.grads), c);
  if (active != nullptr)
    for (std::size_t i = 0; i < at.size; ++i)
      if (!exchange::is_active(active, i)) m[i] = 0;
  std::memcpy(in.params.as<float>().data() + at.offset,
              theta_.as<float>().data() + at.offset, at.size * sizeof(float));
  denominator_.update(b, {.values = m.data()}, in, c);
}

double UnderNextStep::arrive() const {
  if (!momentum_.exchange.is_in_flight()) return 0;
  const StepInput common{.params = theta_.view(), .grads = {}};
  return momentum_.exchange.finish(denominator_.updates(common, coefficients_));
}

void UnderNextStep::rejoin(const StepInput& in) {
  if (!differs_) return;
  kernels::convert(theta_.view(), in.params);
  if (!in.low_precision.empty()) kernels::convert(in.params, in.low_precision);
  begin_anew();
}

// ---- between steps

void UnderNextStep::begin_anew() {
  (void)arrive();
  differs_ = false;
  restored_ = Buffer();
}

void UnderNextStep::synchronize(View params) {
  require_view("params", params, model_.size(), true, false);
  (void)arrive();
  rejoin({.params = params, .grads = {}});
}

ConstView UnderNextStep::exchanged_params(ConstView params) const {
  if (!differs_) return params;
  (void)arrive();
  return theta_.view();
}

void UnderNextStep::repeat(View params) {
  if (params.empty() || restored_.empty()) return;
  require_view("params", params, model_.size(), true, false);
  kernels::convert(restored_.view(), params);
  restored_ = Buffer();
  params_ = params;
}

void UnderNextStep::list(StateParts& parts) {
  ScalarPart flag{.name = kParametersDiffer};
  // States of runs without the option lack all these parts.
  if (!parts.has(kLocalParams, true)) flag.missing = 0;
  const bool differs = parts.integer(flag, differs_);
  parts.set(restored_, Buffer());
  if (!differs) return;
  parts.elements(
      {.name = "origin", .ranges = {{0, model_.size()}}, .is_parameters = true},
      theta_);
  parts.add(
      [this](State& state) {
        state.add_elements(
            kLocalParams, Sharing::kMean, {{0, model_.size()}},
            restored_.empty() ? ConstView(params_) : restored_.view());
      },
      [this](StateDict& state) {
        return take_floats(state, kLocalParams, DType::kFloat32, model_.size());
      },
      [this](Buffer&& saved) { restored_ = std::move(saved); });
}

}  // namespace thinwire::optim
