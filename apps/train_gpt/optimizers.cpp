// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/optimizers.h"

#include <algorithm>
#include <array>

#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::train_gpt {
namespace {

optim::ExchangeOptions exchange_options(const Options& options) {
  return {.max_grad_norm = options.clip,
          .calibrated_clipping = options.calibrated_clipping};
}

// What all of them have, under common names.
template <class OptimizerOptions>
OptimizerOptions with_numbers(const Options& options) {
  OptimizerOptions to;
  to.learning_rate = options.lr;
  to.beta1 = Options::kBeta1;
  to.beta2 = Options::kBeta2;
  to.weight_decay = options.weight_decay;
  return to;
}

// Exact data parallelism around an update rule.
template <class Rule, class RuleOptions>
struct Exact {
  static void validate(const Options& options, const ParameterLayout& layout) {
    with_numbers<RuleOptions>(options).validate(layout.num_groups());
    exchange_options(options).validate();
  }
  static std::unique_ptr<optim::Optimizer> make(const Options& options,
                                                const ParameterLayout& layout,
                                                comm::Communicator& comm) {
    return std::make_unique<optim::DataParallel>(
        comm,
        std::make_unique<Rule>(layout, with_numbers<RuleOptions>(options)),
        exchange_options(options));
  }
};
using Adam = Exact<optim::Adam, optim::AdamOptions>;
using Lamb = Exact<optim::Lamb, optim::LambOptions>;

template <class OptimizerOptions>
OptimizerOptions low_bit(const Options& options) {
  auto to = with_numbers<OptimizerOptions>(options);
  to.semantics = options.semantics;
  to.exchange = exchange_options(options);
  return to;
}

template <class OptimizerOptions>
OptimizerOptions with_freeze(const Options& options) {
  auto to = low_bit<OptimizerOptions>(options);
  to.freeze_step = options.freeze_step;
  to.lr_warmup_steps = options.warmup_steps;
  to.total_steps = options.steps;
  return to;
}

optim::OnebitAdamOptions onebit_adam_options(const Options& options) {
  auto to = with_freeze<optim::OnebitAdamOptions>(options);
  to.variance_refresh = options.variance_refresh;
  return to;
}

optim::ZeroOneAdamOptions zero_one_adam_options(const Options& options) {
  auto to = low_bit<optim::ZeroOneAdamOptions>(options);
  to.var_freeze_step = options.var_freeze_step;
  to.local_step_scaler =
      default_phases(options.steps, options.warmup_steps).local_step_scaler;
  to.local_step_clipper = options.local_steps;
  return to;
}

template <class Optimizer, auto kOptions>
struct LowBit {
  static void validate(const Options& options, const ParameterLayout& layout) {
    kOptions(options).validate(layout);
  }
  static std::unique_ptr<optim::Optimizer> make(const Options& options,
                                                const ParameterLayout& layout,
                                                comm::Communicator& comm) {
    return std::make_unique<Optimizer>(comm, layout, kOptions(options));
  }
};
using OnebitAdam = LowBit<optim::OnebitAdam, onebit_adam_options>;
using OnebitLamb =
    LowBit<optim::OnebitLamb, with_freeze<optim::OnebitLambOptions>>;
using ZeroOneAdam = LowBit<optim::ZeroOneAdam, zero_one_adam_options>;

constexpr double kAdamLr = 1.5e-3;
// Relative: a step of LAMB is as long as the parameters say.
constexpr double kLambLr = 1e-2;

constexpr std::array kOptimizers = {
    OptimizerEntry{"adam", kAdamLr, Adam::validate, Adam::make},
    OptimizerEntry{"onebit_adam", kAdamLr, OnebitAdam::validate,
                   OnebitAdam::make},
    OptimizerEntry{"lamb", kLambLr, Lamb::validate, Lamb::make},
    OptimizerEntry{"onebit_lamb", kLambLr, OnebitLamb::validate,
                   OnebitLamb::make},
    OptimizerEntry{"zero_one_adam", kAdamLr, ZeroOneAdam::validate,
                   ZeroOneAdam::make},
};

}  // namespace

const OptimizerEntry* find_optimizer(std::string_view name) {
  const auto found =
      std::find_if(kOptimizers.begin(), kOptimizers.end(),
                   [name](const auto& entry) { return entry.name == name; });
  return found == kOptimizers.end() ? nullptr : &*found;
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const auto& entry : kOptimizers) names.push_back(entry.name);
  return names;
}

}  // namespace thinwire::train_gpt
