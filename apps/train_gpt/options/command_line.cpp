// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>

#include "apps/train_gpt/options/config_file.h"
#include "apps/train_gpt/options/training_config.h"
#include "apps/train_gpt/options/usage_error.h"
#include "apps/train_gpt/report/run_record.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr int kMostRanks = 1024;

void require(bool holds, std::string_view flag, std::string_view range,
             const auto& value) {
  if (!holds) {
    throw UsageError(fmt::format("{} must be {}, got {}", flag, range, value));
  }
}

void require_count(std::string_view flag, std::int64_t value,
                   std::int64_t least) {
  require(value >= least && value <= kMost, flag,
          fmt::format("in {} .. {}", least, kMost), value);
}

void require_amount(std::string_view flag, double value) {
  require(std::isfinite(value) && value >= 0, flag, "finite and at least 0",
          value);
}

// What a file says of ZeRO is for Config to check, which names its keys.
void validate(const Options& options, bool zero_given) {
  if (options.data.empty()) {
    throw UsageError("--data FILE... is missing: the text to train on");
  }
  require_count("--steps", options.steps, 1);
  require_count("--batch", options.batch, 1);
  require_count("--accumulate", options.accumulate, 1);
  require_count("--context", options.context, 1);
  require_count("--layers", options.layers, 1);
  require_count("--width", options.width, 1);
  require_count("--heads", options.heads, 1);
  require(options.width % options.heads == 0, "--heads",
          fmt::format("a divisor of --width {}", options.width), options.heads);
  require_amount("--lr", options.lr);
  require_count("--warmup-steps", options.warmup_steps, 0);
  require_amount("--weight-decay", options.weight_decay);
  require_amount("--clip", options.clip);
  require_count("--validate-every", options.validate_every.value_or(0), 0);
  require_count("--validate-bytes", options.validate_bytes, 1);
  require_count("--variance-refresh", options.variance_refresh, 0);
  require_count("--var-freeze-step", options.var_freeze_step, 1);
  require_count("--local-steps", options.local_steps, 1);
  if (options.semantics != config::Semantics::kCorrected) {
    require(options.freeze_step != optim::kAutoFreeze, "--semantics",
            "corrected with --freeze-step auto", to_string(options.semantics));
    require(options.variance_refresh == 0, "--semantics",
            "corrected with --variance-refresh", to_string(options.semantics));
  }
  require(options.zero >= 0 && options.zero <= 2, "--zero", "0, 1 or 2",
          options.zero);
  if (options.offload && options.zero == 0)
    throw UsageError("--offload needs --zero 1 or --zero 2");
  if (options.zero > 0 && zero_given)
    require(options.optimizer == "adam" || options.optimizer == "lamb",
            "--optimizer",
            "adam or lamb with --zero (lean_onebit_adam shards by itself; "
            "others keep whole states)",
            options.optimizer);
  require(options.ranks >= 1 && options.ranks <= kMostRanks, "--ranks",
          fmt::format("in 1 .. {}", kMostRanks), options.ranks);
}

// Its lines would mix with the run's own.
void validate_telemetry(const Options& options) {
  const std::string path = training_config(options).telemetry.path;
  if (!path.empty() && is_written_by_run(options.out, path))
    throw UsageError(
        fmt::format("telemetry.path must be none of the files that train_gpt "
                    "writes in --out {}, got {}",
                    options.out, path));
}

// How the ranks are reached must fit how the process was launched.
void validate_launch(const Options& options, bool ranks_given) {
  const int launched = env::launched_ranks();
  if (ranks_given && options.comm != CommChoice::kLocal) {
    throw UsageError(
        "--ranks needs --comm local; processes are started by mpirun -np N");
  }
  if (options.comm == CommChoice::kLocal && launched > 1) {
    throw UsageError(
        fmt::format("--comm local: this is one of {} launched processes, and "
                    "each would train alone; start it without a launcher",
                    launched));
  }
}

}  // namespace

CommandLine::CommandLine(CLI::App& app) : app_(app), saving_(app) {
  app_.allow_extras();
  app_.option_defaults()->always_capture_default();
  add_training_flags();
  add_run_flags();
}

void CommandLine::add_training_flags() {
  Options& options = invocation_.options;
  app_.add_option("--data", options.data,
                  "Files to train on, of text or any bytes; the last tenth of "
                  "each is held out for validation")
      ->type_name("FILE")
      ->default_str("");
  app_.add_option("--optimizer", options.optimizer,
                  fmt::format("{}", fmt::join(optimizer_names(), ", ")));
  app_.add_option("--steps", options.steps, "Updates");
  app_.add_option(
      "--batch", options.batch,
      "Sequences per rank and backward; a step has --accumulate backwards");
  app_.add_option("--accumulate", options.accumulate, "Backwards per step");
  app_.add_option("--precision", precision_,
                  "Type of parameters and gradients: fp32, fp16 (with loss "
                  "scaling) or bf16; arithmetic and masters are in fp32");
  app_.add_option("--zero", options.zero,
                  "ZeRO stage: 1 shards optimizer states over the ranks, 2 "
                  "also gradients, 0 nothing (adam, lamb)");
  app_.add_flag(
      "--offload", options.offload,
      "With --zero: keep and update masters and states in host memory");
  app_.add_option("--context", options.context, "Bytes per sequence");
  app_.add_option("--layers", options.layers, "Transformer blocks");
  app_.add_option("--width", options.width, "Numbers per position");
  app_.add_option("--heads", options.heads, "Attention heads");
  app_.add_option("--lr", options.lr, "Highest learning rate")
      ->default_str("1.5e-3 (LAMB 1e-2)");
  app_.add_option("--warmup-steps", options.warmup_steps,
                  "Steps in which the learning rate rises; then it falls to a "
                  "tenth along a cosine");
  app_.add_option("--weight-decay", options.weight_decay,
                  "Weight decay as in AdamW");
  app_.add_option("--clip", options.clip,
                  "Norm to which the gradient is clipped; 0 for no clipping "
                  "(with deepspeed semantics only fp16 is clipped)");
  app_.add_option("--clip-norm", clip_norm_,
                  "Norm in steps without an averaged gradient: calibrated by "
                  "steps that have one, or rms of the ranks' norms");
  app_.add_option(
      "--seed", options.seed,
      "Seed of the initial parameters and of the order of the text");
  app_.add_option(
          "--validate-every", options.validate_every,
          "Steps between validations; 0 for one after the last step only")
      ->type_name("N")
      ->default_str("steps/10");
  app_.add_option("--validate-bytes", options.validate_bytes,
                  "Most held-out bytes that each validation predicts, evenly "
                  "spaced over all files");
  app_.add_option("--freeze-step", freeze_step_,
                  "Last exact step of onebit_adam, lean_onebit_adam and "
                  "onebit_lamb, or auto")
      ->type_name("N|auto")
      ->default_str("steps/5, not before the warm-up ends");
  app_.add_option("--variance-refresh", options.variance_refresh,
                  "onebit_adam: compressed steps per variance refresh, in "
                  "which ranks send the gradient in 4 bits; 0 for never");
  app_.add_option("--var-freeze-step", options.var_freeze_step,
                  "zero_one_adam: last step in which the variance changes")
      ->default_str("steps/2");
  app_.add_option("--local-steps", options.local_steps,
                  "zero_one_adam: longest interval between syncs; after "
                  "--var-freeze-step it is 1, 2, 4, ... steps, doubled after "
                  "each 12 % of the run")
      ->default_str("4 (16 from 10000 steps on)");
  app_.add_option(
      "--semantics", semantics_,
      "corrected, or deepspeed for the same numbers as DeepSpeed, bit for bit");
}

void CommandLine::add_run_flags() {
  Options& options = invocation_.options;
  app_.add_option("--config", config_,
                  "JSON file with DeepSpeed's keys, ours in its object "
                  "thinwire, and these flags in its object train_gpt; a flag "
                  "on the command line wins")
      ->type_name("FILE");
  app_.add_option(
          "--set", options.set,
          "A key of the file's object thinwire, for example zero_bits_up=4 or "
          "telemetry.every=10; may be repeated; wins over file and flags")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->default_str("");
  app_.add_option("--out", options.out,
                  "Folder for metrics.jsonl, summary.json, config.json and "
                  "report.html")
      ->type_name("DIR");
  app_.add_flag("--quiet", options.quiet, "No progress on stderr");
  app_.add_option("--comm", comm_,
                  "local for ranks that are threads of this process, mpi for "
                  "processes (default: by the launcher)");
  app_.add_option("--ranks", options.ranks, "Threads that --comm local starts");
  app_.add_option("--compare", invocation_.compare,
                  "Compare the runs in these folders instead of training: "
                  "writes a table, and report.html in --out")
      ->type_name("DIR")
      ->default_str("");
  // Values that are given twice: the later one counts.
  for (CLI::Option* option : app_.get_options()) {
    if (option->get_expected_max() == 1) option->take_last();
  }
}

std::vector<std::string> CommandLine::flag_names() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_.get_options()) {
    names.push_back(option->get_lnames()[0]);
  }
  return names;
}

void CommandLine::refuse_unknown_flags() const {
  const auto unknown = app_.remaining();
  if (unknown.empty()) return;
  const std::string& word = unknown.front();
  if (!word.starts_with("--")) {
    throw UsageError(fmt::format("'{}' is no flag and no flag's value", word));
  }
  const std::string name = word.substr(2, word.find('=') - 2);
  throw UsageError(fmt::format("no flag --{}; the nearest is --{}", name,
                               nearest(name, flag_names())));
}

// The object train_gpt holds flags; the other keys are the engine's.
void CommandLine::read_config() {
  Options& options = invocation_.options;
  try {
    // Its flags say what its "auto" stands for, so they are read first.
    std::vector<config::KeyNote> keys;
    const config::Config file = config::Config::from_file(
        config_, &keys, {.total_num_steps = kMost, .warmup_num_steps = 0},
        {kOwnObject});
    if (const auto own = file.other_objects.find(kOwnObject);
        own != file.other_objects.end())
      apply_flags(own->second);
    require_warmup_steps(keys);
    config::AutoValues autos{.total_num_steps = options.steps};
    if (is_given("--warmup-steps"))
      autos.warmup_num_steps = options.warmup_steps;
    if (is_given("--lr")) autos.learning_rate = options.lr;
    options.file = config::Config::from_file(config_, &options.file_keys, autos,
                                             {kOwnObject});
  } catch (const Error& error) {
    throw UsageError(fmt::format("--config: {}", error.what()));
  }
  options.file.other_objects.clear();
  std::erase_if(options.file_keys, [](const config::KeyNote& note) {
    return note.path == kOwnObject;
  });
  options.has_file =
      std::any_of(options.file_keys.begin(), options.file_keys.end(),
                  [](const config::KeyNote& note) {
                    return note.kind != config::KeyNote::Kind::kAbsent;
                  });
  if (!options.has_file) options.file_keys.clear();
}

// Where the file's "auto" stands for it.
void CommandLine::require_warmup_steps(
    const std::vector<config::KeyNote>& keys) const {
  if (is_given("--warmup-steps") || !asks_for_warmup_steps(keys)) return;
  throw UsageError(fmt::format(
      "--config: {}: scheduler.params.warmup_num_steps must be a number, or "
      "\"auto\" with --warmup-steps, got \"auto\"",
      config_));
}

void CommandLine::apply_flags(const std::string& section) {
  for (const ConfigEntry& entry : parse_flags(config_, section)) {
    CLI::Option* option = app_.get_option_no_throw("--" + entry.flag);
    const bool only_flag = entry.flag == "config" || entry.flag == "compare" ||
                           entry.flag == "help" || entry.flag == "version";
    if (option == nullptr || only_flag) {
      throw UsageError(
          fmt::format("{}: train_gpt has no key '{}'; the nearest "
                      "is '{}'",
                      config_, entry.flag, nearest(entry.flag, flag_names())));
    }
    if (option->count() > 0) continue;
    try {
      for (const auto& value : entry.values) option->add_result(value);
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw UsageError(fmt::format("{}: {}", config_, error.what()));
    }
  }
}

bool CommandLine::is_given(const char* flag) const {
  return app_.get_option(flag)->count() > 0;
}

void CommandLine::resolve_freeze_step() {
  Options& options = invocation_.options;
  if (freeze_step_ == "auto") {
    options.freeze_step = optim::kAutoFreeze;
  } else if (!CLI::detail::lexical_cast(freeze_step_, options.freeze_step)) {
    throw UsageError(
        fmt::format("--freeze-step must be in 1 .. {} or auto, got '{}'", kMost,
                    freeze_step_));
  } else {
    require_count("--freeze-step", options.freeze_step, 1);
  }
}

// Flags whose values are words.
void CommandLine::resolve_names() {
  Options& options = invocation_.options;
  if (is_given("--semantics")) {
    try {
      options.semantics = config::semantics_from(semantics_);
    } catch (const std::exception& error) {
      throw UsageError(fmt::format("--semantics: {}", error.what()));
    }
  }
  if (is_given("--precision")) {
    const auto precision = precision_from(precision_);
    if (!precision)
      throw UsageError(fmt::format(
          "--precision must be fp32, fp16 or bf16, got '{}'", precision_));
    options.precision = *precision;
  }
}

// What no flag gives: the file's word, or what suits the run.
void CommandLine::resolve_defaults() {
  Options& options = invocation_.options;
  if (options.has_file && !is_given("--optimizer"))
    options.optimizer = config::name_of(options.file.optimizer);
  const auto lr = default_learning_rate(options.optimizer);
  if (!lr) {
    throw UsageError(fmt::format("--optimizer must be one of {}, got '{}'",
                                 fmt::join(optimizer_names(), ", "),
                                 options.optimizer));
  }
  const auto stages = optim::zero_one_stages_of_run(options.steps);
  if (!is_given("--lr")) options.lr = *lr;
  if (!is_given("--var-freeze-step"))
    options.var_freeze_step = stages.var_freeze_step;
  if (!is_given("--local-steps"))
    options.local_steps = stages.local_step_clipper;
  options.freeze_step =
      default_freeze_step(options.steps, options.warmup_steps);
  options.names_freeze_step = is_given("--freeze-step");
  options.names_var_freeze_step = is_given("--var-freeze-step");
  options.names_local_steps = is_given("--local-steps");
  if (options.has_file)
    take_from_file([this](const char* flag) { return is_given(flag); },
                   options);
}

void CommandLine::resolve() {
  Options& options = invocation_.options;
  resolve_names();
  resolve_defaults();
  if (is_given("--freeze-step")) resolve_freeze_step();
  options.calibrated_clipping = clip_norm_ == "calibrated";
  require(options.calibrated_clipping || clip_norm_ == "rms", "--clip-norm",
          "calibrated or rms", fmt::format("'{}'", clip_norm_));
  if (comm_ == "local") options.comm = CommChoice::kLocal;
  if (comm_ == "mpi") options.comm = CommChoice::kMpi;
  if (options.comm == CommChoice::kEnvironment && !comm_.empty()) {
    throw UsageError(
        fmt::format("--comm must be local or mpi, got '{}'", comm_));
  }
}

const Invocation& CommandLine::finish() {
  refuse_unknown_flags();
  if (!config_.empty()) read_config();
  if (!invocation_.compare.empty()) {
    if (!is_given("--out")) {
      throw UsageError("--compare needs --out DIR for its report.html");
    }
  } else {
    resolve();
    Options& options = invocation_.options;
    validate(options, is_given("--zero"));
    take_from_settings(options);
    validate_telemetry(options);
    for (const char* flag : idle_flags(options.optimizer))
      if (is_given(flag)) options.idle_flags.emplace_back(flag);
    options.saving = saving_.resolve(options.file.checkpoint, options.out);
    validate_launch(invocation_.options, is_given("--ranks"));
  }
  return invocation_;
}

}  // namespace thinwire::train_gpt
