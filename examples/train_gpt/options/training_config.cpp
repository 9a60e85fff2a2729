// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/options/training_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>

#include "config/keys.h"
#include "core/duration.h"
#include "core/require.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"

namespace thinwire::train_gpt {
namespace {

using config::Config;
using config::OptimizerConfig;
using nlohmann::json;

constexpr const char* kOptimizer = "onebit_adam";
// These were measured (docs/algorithms.md).
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.99;
constexpr double kFinalFraction = 0.1;  // share of the learning rate
constexpr double kAdamLr = 1.5e-3;
// The rate is relative, because a step of LAMB is proportional to the
// parameters' norm.
constexpr double kLambLr = 1e-2;
constexpr double kClip = 1;
constexpr std::int64_t kWarmupSteps = 50;
constexpr std::int64_t kBatch = 8;

std::int64_t warmup_steps(const Options& options) {
  return options.warmup_steps.value_or(kWarmupSteps);
}

// Unlike optim::freeze_step_of_run() this has no upper bound.
std::int64_t default_freeze_step(const Options& options) {
  return std::max({std::int64_t{1}, options.steps / 5, warmup_steps(options)});
}

template <std::size_t kIndex = 0>
OptimizerConfig make_optimizer(const std::string& name) {
  if constexpr (kIndex == std::variant_size_v<OptimizerConfig>) {
    reject(fmt::format("there is no optimizer '{}'", name));
  } else {
    OptimizerConfig optimizer{std::in_place_index<kIndex>};
    if (config::name_of(optimizer) != name)
      return make_optimizer<kIndex + 1>(name);
    auto& fields = std::get<kIndex>(optimizer);
    fields.learning_rate = name.ends_with("lamb") ? kLambLr : kAdamLr;
    fields.beta1 = kBeta1;
    fields.beta2 = kBeta2;
    return optimizer;
  }
}

// Sets an optimizer's options. Its stages follow from the number of steps
// unless the user sets them.
struct SetOptimizer {
  const Options& options;
  bool is_files = false;  // only the file sets the optimizer
  Start start = Start::kAnew;

  template <class To>
  void operator()(To& to) const {
    if constexpr (requires { to.freeze; }) {
      if (start == Start::kAnew)
        to.freeze.step = is_files ? optim::freeze_step_of(to.freeze)
                                  : default_freeze_step(options);
      to.freeze.lr_warmup_steps = warmup_steps(options);
      to.freeze.total_steps = options.steps;
    }
    if constexpr (requires { to.var_freeze_step; }) set_stages(to);
  }

  template <class To>
  void set_stages(To& to) const {
    if (start == Start::kResumed) {
      // Old checkpoints do not have their stages.
      if (!options.file) to.total_steps = options.steps;
      return;
    }
    const optim::ZeroOneStages stages =
        is_files ? optim::zero_one_stages_of(to)
                 : optim::zero_one_stages_of_run(options.steps);
    to.var_freeze_step = stages.var_freeze_step;
    to.local_step_clipper = stages.local_step_clipper;
    if (!options.file) to.local_step_scaler = stages.local_step_scaler;
  }
};

// train_gpt.warmup_steps selects our schedule, unless the file defers to it.
bool file_schedules(const Options& options) {
  return options.file &&
         (!options.warmup_steps ||
          std::ranges::any_of(options.file_keys, [](const auto& key) {
            return key.path == "scheduler.params.warmup_num_steps" &&
                   !key.note.empty();
          }));
}

bool file_sizes(const Options& options) {
  return options.file && (options.file->train_batch_size ||
                          options.file->train_micro_batch_size_per_gpu ||
                          options.file->gradient_accumulation_steps);
}

// Returns a schedule that rises to the learning rate, then falls by half a
// cosine to a tenth of it.
config::LearningRateSchedule schedule_of(const Options& options) {
  config::WarmupAndDecay shape{.warmup_steps = warmup_steps(options)};
  if (options.steps > shape.warmup_steps) {
    shape.decay = config::Decay::kCosine;
    shape.total_steps = options.steps;
    shape.final_fraction = kFinalFraction;
  }
  return {shape};
}

void set_checkpoints(const Options& options, config::CheckpointConfig& files) {
  if (!options.save_every) return;
  const auto time = duration_from(*options.save_every);
  files.every = time.value_or(std::chrono::milliseconds(0));
  files.every_steps = time ? 0 : std::stoll(*options.save_every);
}

// Returns the key's place in a file: in the object thinwire, otherwise at the
// top.
std::string pointer_to(const std::string& key) {
  const std::string first = key.substr(0, key.find('.'));
  const bool is_at_top =
      config::is_known_key(first) && !config::is_known_key("thinwire." + first);
  std::string path = (is_at_top ? "/" : "/thinwire/") + key;
  std::replace(path.begin(), path.end(), '.', '/');
  return path;
}

void put(json& file, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  const std::string text = setting.substr(equals + 1);
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) value = text;  // a text without quotes
  const std::string path = pointer_to(key);
  if (value.is_object() && path.starts_with("/optimizer"))
    reject(fmt::format(
        "{} must be set key by key, as in optimizer.params.lr=0.001", key));
  try {
    file[json::json_pointer(path)] = std::move(value);
  } catch (const json::exception&) {  // part of the key is not an object
    reject(fmt::format("there is no key {}", key));
  }
}

// Later settings win. Settings of this program itself are in `options` already.
Config with_settings(const Config& config, const Options& options) {
  if (options.set.empty()) return config;
  try {
    json file = json::parse(config.to_json());
    // The step that follows from --steps gives way to another, and to an
    // automatic freeze.
    const json::json_pointer step("/optimizer/params/freeze_step");
    const json::json_pointer automatic("/thinwire/auto_freeze");
    const json planned = file.value(step, json());
    file["optimizer"]["params"].erase("freeze_step");
    for (const std::string& setting : options.set)
      if (!setting.starts_with(fmt::format("{}.", kOwnObject)))
        put(file, setting);
    const bool is_automatic =
        file.contains(automatic) && file.at(automatic) == true;
    if (!planned.is_null() && !is_automatic && !file.contains(step))
      file[step] = planned;
    std::vector<config::KeyNote> unneeded;  // on keys of to_json()
    return Config::from_json(file.dump(), &unneeded);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--set: {}", error.what()));
  }
}

const std::map<std::string, int> kSignals = {
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"INT", SIGINT}};

// mpirun sends SIGTERM when a rank has died; then the ranks cannot save.
std::vector<int> signals_of(const Options& options, bool is_asked_for) {
  const bool by_mpirun = env::launched_by_mpirun();
  if (options.save_on.empty()) {
    if (by_mpirun || !is_asked_for) return {SIGUSR1};
    return {SIGUSR1, SIGTERM, SIGINT};
  }
  std::vector<int> signals;
  for (const std::string& name : options.save_on) {
    require(!by_mpirun || name.starts_with("USR"), "train_gpt.save_on",
            "USR1 or USR2 under mpirun, which sends TERM when a rank has died",
            name);
    signals.push_back(kSignals.at(name));
  }
  return signals;
}

}  // namespace

Config training_config(const Options& options, Start start) {
  Config config = options.file.value_or(Config{});
  const std::string name = options.optimizer.value_or(
      options.file ? std::string(config::name_of(config.optimizer))
                   : kOptimizer);
  const bool is_files =
      options.file && config::name_of(config.optimizer) == name;
  if (!is_files) config.optimizer = make_optimizer(name);
  std::visit(SetOptimizer{options, is_files, start}, config.optimizer);
  if (!options.file) config.gradient_clipping = kClip;
  if (!file_schedules(options)) config.schedule = schedule_of(options);
  if (!file_sizes(options)) {
    config.train_batch_size.reset();
    config.train_micro_batch_size_per_gpu = kBatch;
    config.gradient_accumulation_steps =
        config.gradient_accumulation_steps.value_or(1);
  }
  set_checkpoints(options, config.checkpoint);
  return with_settings(config, options);
}

Saving saving_of(const Options& options, const config::Config& config) {
  Saving saving{.files = config.checkpoint};
  std::string& root = saving.files.root;
  require(options.resume != "", "--resume", "a directory", "''");
  for (const auto& [key, is_given] :
       {std::pair{"train_gpt.resume_fallback", options.resume_fallback},
        std::pair{"train_gpt.resume_new_data", options.resume_new_data}})
    if (is_given && !options.resume)
      reject(fmt::format("{} needs --resume", key));
  const bool names_root = !root.empty();
  if (!names_root) root = options.out + "/checkpoints";
  saving.signals =
      signals_of(options, saving.is_periodic() || names_root || options.resume);
  return saving;
}

Settings settings_of(const Options& options, const Config& config) {
  Settings settings;
  const auto add = [&](const char* name, const auto& value) {
    settings.emplace_back(name, fmt::to_string(value));
  };
  add("optimizer", config::name_of(config.optimizer));
  add("steps", options.steps);
  // Without warmup_steps, a file's own schedule holds.
  if (!file_schedules(options) && config.schedule == schedule_of(options))
    add("warmup_steps", warmup_steps(options));
  for (const auto& [name, size] :
       {std::pair{"context", options.context},
        std::pair{"layers", options.layers}, std::pair{"width", options.width},
        std::pair{"heads", options.heads}})
    add(name, size);
  add("seed", options.seed);
  if (options.validate_every) add("validate_every", *options.validate_every);
  if (options.validate_bytes != Options{}.validate_bytes)
    add("validate_bytes", options.validate_bytes);
  return settings;
}

config::BatchSizes batch_of(const Config& config, int world) {
  config::BatchSizes batch = config.batch(world);
  if (batch.micro == 0) batch.micro = kBatch;
  return batch;
}

}  // namespace thinwire::train_gpt
