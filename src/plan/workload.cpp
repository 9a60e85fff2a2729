// SPDX-License-Identifier: Apache-2.0
#include "thinwire/plan/workload.h"

#include <algorithm>
#include <type_traits>

#include "plan/zero_buckets.h"

namespace thinwire::plan {

namespace {

// Applies the stages that a configuration's options name.
void take_named_stages(const config::OptimizerConfig& optimizer,
                       RunStages& run) {
  std::visit(
      [&](auto options) {
        using Options = std::decay_t<decltype(options)>;
        if constexpr (std::is_same_v<Options, optim::ZeroOneAdamOptions>) {
          options.total_steps = run.steps;
          run.zero_one = optim::zero_one_stages_of(options);
        } else if constexpr (requires { options.freeze; }) {
          options.freeze.total_steps = run.steps;
          if (options.freeze.step != optim::kAutoFreeze)
            run.freeze_step = optim::freeze_step_of(options.freeze);
          if (options.freeze.warmup_bits || options.freeze.step)
            run.warmup_bits = optim::warmup_bits_of(options.freeze);
        }
      },
      optimizer);
}

}  // namespace

Workload workload_of(const config::Config& config, int ranks, Workload work) {
  config.validate(ranks);
  work.dtype = config.precision.dtype;
  work.backwards = static_cast<double>(config.batch(ranks).accumulation_steps);
  work.bucket_elements = static_cast<double>(config.comm.bucket_elements);
  work.zero_bucket_bound = static_cast<double>(zero_bucket_bound(config.zero));
  if (const auto* zero_one =
          std::get_if<optim::ZeroOneAdamOptions>(&config.optimizer)) {
    work.steps_per_sync = static_cast<double>(
        optim::zero_one_stages_of(*zero_one).local_step_clipper);
    work.residual_dtype =
        zero_one->compression.residual_dtype.value_or(DType::kFloat32);
  }
  if (const auto* onebit =
          std::get_if<optim::OnebitAdamOptions>(&config.optimizer))
    work.residual_dtype =
        onebit->compression.residual_dtype.value_or(DType::kFloat32);
  if (config.average.low_rank > 0) work.low_rank = config.average.low_rank;
  if (config.outer.sync_every > 0)
    work.steps_per_outer_sync = static_cast<double>(config.outer.sync_every);
  return work;
}

Workload workload_of_run(Workload work, std::int64_t total_steps,
                         std::optional<std::int64_t> freeze_step,
                         std::optional<int> warmup_bits,
                         const config::Config* config) {
  // Workload::validate() rejects values out of range.
  const std::int64_t steps = std::max<std::int64_t>(total_steps, 1);
  RunStages run{.steps = total_steps,
                .freeze_step = optim::freeze_step_of_run(steps),
                .warmup_bits = freeze_step ? 0 : optim::kWarmupBitsOfRun,
                .zero_one = optim::zero_one_stages_of_run(steps)};
  if (config != nullptr) {
    take_named_stages(config->optimizer, run);
    run.first_low_rank_steps = config->average.first_steps;
  }
  if (freeze_step) run.freeze_step = *freeze_step;
  if (warmup_bits) run.warmup_bits = *warmup_bits;
  work.steps_per_sync = static_cast<double>(run.zero_one.local_step_clipper);
  work.run = run;
  return work;
}

}  // namespace thinwire::plan
