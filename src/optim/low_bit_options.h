// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "optim/low_bit.h"

/// From an optimizer's public options, whose common fields have common names,
/// to what the private parts take.
namespace thinwire::optim {

/// The update rule's part of the options, as the semantics honour it.
template <class Options>
[[nodiscard]] AdamOptions adam_options(const Options& options) {
  const bool honoured = policy_of(options.semantics).honours_adam_options;
  return {.learning_rate = options.learning_rate,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .weight_decay = options.weight_decay,
          .decoupled_decay = true,
          .bias_correction = honoured && options.bias_correction,
          .epsilon_inside_sqrt = honoured && options.epsilon_inside_sqrt,
          .groups = {options.groups.begin(), options.groups.end()}};
}

template <class Options>
[[nodiscard]] LowBitSettings low_bit_settings(std::string name,
                                              std::string own_options,
                                              const Options& options) {
  LowBitSettings settings{.name = std::move(name),
                          .own_options = std::move(own_options),
                          .adam = adam_options(options),
                          .groups = {},
                          .semantics = options.semantics,
                          .scale = options.scale,
                          .residual_dtype = options.residual_dtype,
                          .denom_floor = options.denom_floor,
                          .exchange = options.exchange};
  for (const auto& group : options.groups) {
    LowBitGroup& to = settings.groups.emplace_back();
    to.exp_avg_mask = group.exp_avg_mask;
    if constexpr (requires { group.non_freeze; })
      to.stays_exact = group.non_freeze;
  }
  return settings;
}

}  // namespace thinwire::optim
