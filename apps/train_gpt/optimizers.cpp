// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/optimizers.h"

#include <algorithm>
#include <array>

#include "thinwire/optim/adam.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt {
namespace {

optim::ExchangeOptions exchange_options(const Options& options) {
  return {.max_grad_norm = options.clip};
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

constexpr std::array kOptimizers = {
    OptimizerEntry{"adam", validate_adam, make_adam},
    OptimizerEntry{"onebit_adam", validate_onebit_adam, make_onebit_adam},
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
