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

optim::AdamOptions adam_options(const Options& options) {
  return {.learning_rate = options.lr,
          .beta1 = Options::kBeta1,
          .beta2 = Options::kBeta2,
          .weight_decay = options.weight_decay};
}

void validate_adam(const Options& options, const ParameterLayout& layout) {
  adam_options(options).validate(layout.num_groups());
  exchange_options(options).validate();
}

std::unique_ptr<optim::Optimizer> make_adam(const Options& options,
                                            const ParameterLayout& layout,
                                            comm::Communicator& comm) {
  return std::make_unique<optim::DataParallel>(
      comm, std::make_unique<optim::Adam>(layout, adam_options(options)),
      exchange_options(options));
}

optim::OnebitAdamOptions onebit_adam_options(const Options& options) {
  return {.learning_rate = options.lr,
          .beta1 = Options::kBeta1,
          .beta2 = Options::kBeta2,
          .weight_decay = options.weight_decay,
          .freeze_step = options.freeze_step,
          .lr_warmup_steps = options.warmup_steps,
          .total_steps = options.steps,
          .variance_refresh = options.variance_refresh,
          .semantics = options.semantics,
          .exchange = exchange_options(options)};
}

void validate_onebit_adam(const Options& options,
                          const ParameterLayout& layout) {
  onebit_adam_options(options).validate(layout);
}

std::unique_ptr<optim::Optimizer> make_onebit_adam(
    const Options& options, const ParameterLayout& layout,
    comm::Communicator& comm) {
  return std::make_unique<optim::OnebitAdam>(comm, layout,
                                             onebit_adam_options(options));
}

optim::LambOptions lamb_options(const Options& options) {
  return {.learning_rate = options.lr,
          .beta1 = Options::kBeta1,
          .beta2 = Options::kBeta2,
          .weight_decay = options.weight_decay};
}

void validate_lamb(const Options& options, const ParameterLayout& layout) {
  lamb_options(options).validate(layout.num_groups());
  exchange_options(options).validate();
}

std::unique_ptr<optim::Optimizer> make_lamb(const Options& options,
                                            const ParameterLayout& layout,
                                            comm::Communicator& comm) {
  return std::make_unique<optim::DataParallel>(
      comm, std::make_unique<optim::Lamb>(layout, lamb_options(options)),
      exchange_options(options));
}

optim::OnebitLambOptions onebit_lamb_options(const Options& options) {
  return {.learning_rate = options.lr,
          .beta1 = Options::kBeta1,
          .beta2 = Options::kBeta2,
          .weight_decay = options.weight_decay,
          .freeze_step = options.freeze_step,
          .lr_warmup_steps = options.warmup_steps,
          .total_steps = options.steps,
          .semantics = options.semantics,
          .exchange = exchange_options(options)};
}

void validate_onebit_lamb(const Options& options,
                          const ParameterLayout& layout) {
  onebit_lamb_options(options).validate(layout);
}

std::unique_ptr<optim::Optimizer> make_onebit_lamb(
    const Options& options, const ParameterLayout& layout,
    comm::Communicator& comm) {
  return std::make_unique<optim::OnebitLamb>(comm, layout,
                                             onebit_lamb_options(options));
}

optim::ZeroOneAdamOptions zero_one_adam_options(const Options& options) {
  const Phases phases = default_phases(options.steps, options.warmup_steps);
  return {.learning_rate = options.lr,
          .beta1 = Options::kBeta1,
          .beta2 = Options::kBeta2,
          .weight_decay = options.weight_decay,
          .var_freeze_step = options.var_freeze_step,
          .local_step_scaler = phases.local_step_scaler,
          .local_step_clipper = options.local_steps,
          .semantics = options.semantics,
          .exchange = exchange_options(options)};
}

void validate_zero_one_adam(const Options& options,
                            const ParameterLayout& layout) {
  zero_one_adam_options(options).validate(layout);
}

std::unique_ptr<optim::Optimizer> make_zero_one_adam(
    const Options& options, const ParameterLayout& layout,
    comm::Communicator& comm) {
  return std::make_unique<optim::ZeroOneAdam>(comm, layout,
                                              zero_one_adam_options(options));
}

constexpr double kAdamLr = 1.5e-3;
constexpr double kAdamClip = 1;
// A step of LAMB has the length that the parameters give it: the gradient's
// does not matter.
constexpr double kLambLr = 1e-2;
constexpr double kLambClip = 0;

constexpr std::array kOptimizers = {
    OptimizerEntry{"adam", kAdamLr, kAdamClip, validate_adam, make_adam},
    OptimizerEntry{"onebit_adam", kAdamLr, kAdamClip, validate_onebit_adam,
                   make_onebit_adam},
    OptimizerEntry{"lamb", kLambLr, kLambClip, validate_lamb, make_lamb},
    OptimizerEntry{"onebit_lamb", kLambLr, kLambClip, validate_onebit_lamb,
                   make_onebit_lamb},
    OptimizerEntry{"zero_one_adam", kAdamLr, kAdamClip, validate_zero_one_adam,
                   make_zero_one_adam},
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
