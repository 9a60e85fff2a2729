// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/training_config.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>

#include "apps/train_gpt/options/settings.h"

namespace thinwire::train_gpt {
namespace {

using config::Config;
using config::OptimizerConfig;

struct Entry {
  std::string_view name;
  double lr = 0;
  OptimizerConfig (*options)() = nullptr;
};

// Fixed by what was measured (docs/algorithms.md), so no flags.
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.99;
constexpr double kFinalFraction = 0.1;  // of the learning rate

constexpr double kAdamLr = 1.5e-3;
// Relative: a step of LAMB is as long as the parameters say.
constexpr double kLambLr = 1e-2;

template <class Options>
OptimizerConfig with_betas() {
  Options options;
  options.beta1 = kBeta1;
  options.beta2 = kBeta2;
  return options;
}

constexpr std::array kOptimizers = {
    Entry{"adam", kAdamLr, with_betas<optim::AdamOptions>},
    Entry{"onebit_adam", kAdamLr, with_betas<optim::OnebitAdamOptions>},
    Entry{"lamb", kLambLr, with_betas<optim::LambOptions>},
    Entry{"onebit_lamb", kLambLr, with_betas<optim::OnebitLambOptions>},
    Entry{"zero_one_adam", kAdamLr, with_betas<optim::ZeroOneAdamOptions>},
    Entry{"lean_onebit_adam", kAdamLr, with_betas<lean::LeanOnebitAdamOptions>},
};

const Entry* find(std::string_view name) {
  const auto found =
      std::find_if(kOptimizers.begin(), kOptimizers.end(),
                   [name](const Entry& entry) { return entry.name == name; });
  return found == kOptimizers.end() ? nullptr : &*found;
}

// The flags of each optimizer.
struct SetFlags {
  const Options& from;

  template <class To>
  void operator()(To& to) const {
    to.learning_rate = from.lr;
    to.weight_decay = from.weight_decay;
    if constexpr (requires { to.freeze; }) {
      to.freeze.step = from.freeze_step;
      to.freeze.lr_warmup_steps = from.warmup_steps;
      to.freeze.total_steps = from.steps;
    }
    if constexpr (requires { to.var_freeze_step; }) {
      to.var_freeze_step = from.var_freeze_step;
      to.local_step_clipper = from.local_steps;
      if (!from.has_file)
        to.local_step_scaler =
            optim::zero_one_stages_of_run(from.steps).local_step_scaler;
    }
  }
};

// Up to the learning rate, then half a cosine down to a tenth of it.
config::LearningRateSchedule schedule_of(const Options& options) {
  config::WarmupAndDecay shape{.warmup_steps = options.warmup_steps};
  if (options.steps > options.warmup_steps) {
    shape.decay = config::Decay::kCosine;
    shape.total_steps = options.steps;
    shape.final_fraction = kFinalFraction;
  }
  return {shape};
}

}  // namespace

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kOptimizers) names.push_back(entry.name);
  return names;
}

std::optional<double> default_learning_rate(std::string_view optimizer) {
  const Entry* entry = find(optimizer);
  if (entry == nullptr) return std::nullopt;
  return entry->lr;
}

std::vector<const char*> idle_flags(std::string_view optimizer) {
  std::vector<const char*> idle;
  const auto unless = [&](bool follows, std::initializer_list<const char*> of) {
    if (!follows) idle.insert(idle.end(), of);
  };
  std::visit(
      [&]<class Of>(const Of&) {
        unless(requires(Of o) { o.freeze; }, {"--freeze-step"});
        unless(requires(Of o) { o.var_freeze_step; },
               {"--var-freeze-step", "--local-steps"});
      },
      find(optimizer)->options());
  return idle;
}

bool asks_for_warmup_steps(const std::vector<config::KeyNote>& keys) {
  return std::any_of(keys.begin(), keys.end(), [](const auto& key) {
    return key.path == "scheduler.params.warmup_num_steps" && !key.note.empty();
  });
}

void take_from_file(const std::function<bool(const char* flag)>& is_given,
                    Options& options) {
  const Config& file = options.file;
  const auto take = [&](const char* flag, auto& to, const auto& value) {
    if (!is_given(flag)) to = value;
  };
  take("--optimizer", options.optimizer,
       std::string(config::name_of(file.optimizer)));
  take("--clip", options.clip, file.gradient_clipping);
  take("--semantics", options.semantics, file.semantics);
  take("--precision", options.precision, file.precision.dtype);
  take("--zero", options.zero, static_cast<std::int64_t>(file.zero.stage));
  take("--offload", options.offload,
       file.zero.stage > 0 &&
           file.zero.offload_optimizer == config::OffloadDevice::kCpu);
  // --warmup-steps asks for our schedule, unless the file asks for --warmup-
  // steps.
  options.file_schedules =
      !is_given("--warmup-steps") || asks_for_warmup_steps(options.file_keys);
  // A flag wins over the file's number of the same thing, and over what its
  // train_batch_size would give for it.
  const bool sizes_given = is_given("--batch") || is_given("--accumulate");
  options.file_sizes = !sizes_given && (file.train_batch_size ||
                                        file.train_micro_batch_size_per_gpu ||
                                        file.gradient_accumulation_steps);
  take("--batch", options.batch,
       file.train_micro_batch_size_per_gpu.value_or(options.batch));
  take("--accumulate", options.accumulate,
       file.gradient_accumulation_steps.value_or(options.accumulate));
  if (options.optimizer != config::name_of(file.optimizer)) return;
  std::visit(
      [&](const auto& from) {
        take("--lr", options.lr, from.learning_rate);
        take("--weight-decay", options.weight_decay, from.weight_decay);
        if constexpr (requires { from.freeze; }) {
          take("--freeze-step", options.freeze_step,
               optim::freeze_step_of(from.freeze));
          options.names_freeze_step |= from.freeze.step.has_value();
        }
        if constexpr (requires { from.var_freeze_step; }) {
          const optim::ZeroOneStages stages = optim::zero_one_stages_of(from);
          take("--var-freeze-step", options.var_freeze_step,
               stages.var_freeze_step);
          take("--local-steps", options.local_steps, stages.local_step_clipper);
          options.names_var_freeze_step |= from.var_freeze_step.has_value();
          options.names_local_steps |= from.local_step_clipper.has_value();
        }
      },
      file.optimizer);
}

void take_from_settings(Options& options) {
  if (options.set.empty()) return;
  const Config config = training_config(options);
  options.optimizer = config::name_of(config.optimizer);
  options.semantics = config.semantics;
  std::visit(
      [&](const auto& from) {
        if constexpr (requires { from.freeze; })
          options.freeze_step = optim::freeze_step_of(from.freeze);
      },
      config.optimizer);
  options.file.checkpoint = config.checkpoint;
}

Config training_config(const Options& options) {
  Config config = options.file;
  const Entry& entry = *find(options.optimizer);
  if (!options.has_file || config::name_of(config.optimizer) != entry.name)
    config.optimizer = entry.options();
  std::visit(SetFlags{options}, config.optimizer);
  config.gradient_clipping = options.clip;
  config.semantics = options.semantics;
  config.precision.dtype = options.precision;
  config.zero.stage = static_cast<int>(options.zero);
  config.zero.offload_optimizer = options.offload
                                      ? config::OffloadDevice::kCpu
                                      : config::OffloadDevice::kNone;
  if (!options.file_schedules) config.schedule = schedule_of(options);
  if (!options.file_sizes) {
    config.train_batch_size.reset();
    config.train_micro_batch_size_per_gpu = options.batch;
    config.gradient_accumulation_steps = options.accumulate;
  }
  return with_settings(config, options.set);
}

Config config_to_resume(const Options& options) {
  Config config = training_config(options);
  std::visit(
      [&](auto& to) {
        if constexpr (requires { to.freeze; }) {
          if (!options.names_freeze_step &&
              to.freeze.step != optim::kAutoFreeze)
            to.freeze.step.reset();
        }
        if constexpr (requires { to.var_freeze_step; }) {
          if (!options.names_var_freeze_step) to.var_freeze_step.reset();
          if (!options.names_local_steps) to.local_step_clipper.reset();
          if (options.has_file) return;
          to.local_step_scaler.reset();
          to.total_steps = options.steps;  // of checkpoints that say nothing
        }
      },
      config.optimizer);
  return config;
}

}  // namespace thinwire::train_gpt
