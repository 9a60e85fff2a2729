// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/lamb.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "optim/lamb_step.h"
#include "optim/require.h"

namespace thinwire::optim {

namespace {

AdamOptions adam_options(const LambOptions& o) {
  return {.learning_rate = o.learning_rate,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .epsilon = o.epsilon,
          .weight_decay = o.weight_decay,
          .decoupled_decay = true,
          .bias_correction = o.bias_correction,
          .epsilon_inside_sqrt = o.epsilon_inside_sqrt,
          .groups = o.groups};
}

}  // namespace

void LambOptions::validate(std::size_t num_groups) const {
  adam_options(*this).validate(num_groups);
  require_trust_limits(min_coeff, max_coeff);
}

Lamb::Lamb(ParameterLayout layout, const LambOptions& options)
    : adam_(std::move(layout), adam_options(options)), options_(options) {
  options_.validate(adam_.num_groups());
  ratios_.resize(adam_.layout().parameters().size());
}

std::string_view Lamb::name() const noexcept { return "lamb"; }

const ParameterLayout& Lamb::layout() const noexcept { return adam_.layout(); }

std::string Lamb::describe() const {
  return fmt::format("lamb min_coeff={} max_coeff={}\n{}", options_.min_coeff,
                     options_.max_coeff, adam_.describe());
}

void Lamb::apply(std::int64_t step, const UpdateArrays& arrays,
                 ThreadPool& pool) {
  ratios_ = lamb_step(adam_, step, arrays,
                      {options_.min_coeff, options_.max_coeff}, pool);
}

std::size_t Lamb::num_groups() const noexcept { return adam_.num_groups(); }

void Lamb::set_learning_rate(std::size_t group, double learning_rate) {
  adam_.set_learning_rate(group, learning_rate);
}

double Lamb::learning_rate(std::size_t group) const {
  return adam_.learning_rate(group);
}

void Lamb::save(StateDict& state) const { adam_.save(state); }

void Lamb::load(const StateDict& state) { adam_.load(state); }

}  // namespace thinwire::optim
