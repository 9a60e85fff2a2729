// SPDX-License-Identifier: Apache-2.0
// The table of options: each is a flag and, with "_" in place of "-", a key of
// the object "train_gpt" of a configuration file.
#include "examples/train_gpt/options/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/duration.h"
#include "core/edit_distance.h"
#include "core/require.h"
#include "examples/train_gpt/options/training_config.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr int kMostRanks = 1024;
constexpr const char* kOptimizers =
    "adam, onebit_adam, lamb, onebit_lamb, zero_one_adam, lean_onebit_adam";
// Options of this group are not flags.
constexpr const char* kKeysOnly =
    "Keys of --set train_gpt.KEY=VALUE, which are not flags";

// Flags of earlier versions, and what to use instead.
constexpr std::pair<std::string_view, std::string_view> kReplaced[] = {
    {"accumulate", "write --set gradient_accumulation_steps=N"},
    {"precision", "write --set bf16.enabled=true or --set fp16.enabled=true"},
    {"zero", "write --set zero_optimization.stage=N"},
    {"offload", "write --set zero_optimization.offload_optimizer.device=cpu"},
    {"var-freeze-step", "write --set optimizer.params.var_freeze_step=N"},
    {"local-steps", "write --set optimizer.params.local_step_clipper=N"},
    {"validate-every", "write --set train_gpt.validate_every=N"},
    {"validate-bytes", "write --set train_gpt.validate_bytes=N"},
    {"compare",
     "run .venv/bin/python examples/train_gpt/report.py RUN... --out DIR"},
};

// Accepts a value if `holds`; `range` is for the message.
template <class Holds>
CLI::Validator within(const std::string& range, Holds&& holds) {
  return {[range, holds](std::string& text) {
            return holds(text)
                       ? std::string()
                       : fmt::format("must be {}, got '{}'", range, text);
          },
          ""};
}

template <class T>
std::optional<T> number_from(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

CLI::Validator count(std::int64_t least, std::int64_t most = kMost) {
  return within(fmt::format("in {} .. {}", least, most),
                [=](const std::string& text) {
                  const auto value = number_from<std::int64_t>(text);
                  return value && *value >= least && *value <= most;
                });
}

CLI::Validator count_or_auto() {
  return within(fmt::format("in 1 .. {} or auto", kMost),
                [](std::string& text) {
                  if (text == "auto") text = fmt::to_string(optim::kAutoFreeze);
                  const auto value = number_from<std::int64_t>(text);
                  return value && (*value >= 1 || *value == optim::kAutoFreeze);
                });
}

CLI::Validator amount() {
  return within("finite and at least 0", [](const std::string& text) {
    const auto value = number_from<double>(text);
    return value && std::isfinite(*value) && *value >= 0;
  });
}

CLI::Validator one_of(const std::string& words) {
  return within("one of " + words, [words](const std::string& text) {
    return fmt::format(", {},", words).find(fmt::format(" {},", text)) !=
           std::string::npos;
  });
}

void validate(const Options& options) {
  if (options.data.empty())
    reject("--data FILE... is missing: the text to train on");
  require(options.width % options.heads == 0, "--heads",
          fmt::format("a divisor of --width {}", options.width), options.heads);
  for (const std::string& setting : options.set)
    require(setting.find('=') != std::string::npos && setting.front() != '=',
            "--set", "KEY=VALUE", fmt::format("'{}'", setting));
  // The choice of ranks must fit the way the process was launched.
  const bool is_local = options.comm == "local";
  if (options.ranks && !is_local)
    reject("--ranks needs --comm local; processes are started by mpirun -np N");
  if (const int launched = env::launched_ranks(); is_local && launched > 1)
    reject(fmt::format(
        "--comm local: this is one of {} launched processes, and each would "
        "train alone; start it without a launcher",
        launched));
}

// Returns the full path, which need not exist. If it cannot be followed (a loop
// of links, no permission), it stays as it is written.
std::filesystem::path whole(const std::filesystem::path& path) {
  std::error_code error;
  const auto from_root = std::filesystem::absolute(path, error);
  const auto followed = std::filesystem::weakly_canonical(from_root, error);
  return error ? from_root.lexically_normal() : followed;
}

// A run must not overwrite what it reads, nor mix its lines with telemetry.
void require_outside(const std::string& folder, std::string_view option,
                     const std::string& path) {
  const auto out = whole(folder) / "";
  const auto file = whole(path);
  const auto [differs, unused] =
      std::mismatch(out.begin(), out.end(), file.begin(), file.end());
  // The last part of `out` is empty, because it ends in a slash.
  if (differs == out.end() || differs->empty())
    reject(
        fmt::format("{}: '{}' lies in the folder that the run writes to, "
                    "--out '{}'; give another one",
                    option, path, folder));
}

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

// Says that `where` has no option of this name, and names its replacement or
// the nearest option. `dashes` precede flags; keys have none.
[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& where,
                                 std::string_view dashes,
                                 const std::string& name) {
  const std::string unknown = fmt::format("{} {}{}", where, dashes, name);
  for (const auto& [flag, instead] : kReplaced)
    if (flag == name) reject(fmt::format("{}; {}", unknown, instead));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    if (dashes.empty() || option->get_group() != kKeysOnly)
      known.push_back(option->get_lnames().front());
  // "warmup" means "warmup-steps", and "clip-norm" means "clip".
  std::string_view nearest;
  for (const std::string& other : known)
    if (!name.empty() && (other.starts_with(name) || name.starts_with(other)))
      nearest = other;
  if (nearest.empty()) nearest = nearest_name(name, known);
  if (nearest.empty()) reject(unknown);
  reject(fmt::format("{}; the nearest is {}{}", unknown, dashes, nearest));
}

// Sets an option to a value of a file or of --set.
void set(CLI::Option& option, const std::string& where,
         const nlohmann::json& value) {
  const nlohmann::json all =
      value.is_array() ? value : nlohmann::json::array({value});
  option.clear();
  for (const nlohmann::json& one : all) {
    require(one.is_primitive() && !one.is_null(), where,
            "a number, a string, true or false", one.dump());
    option.add_result(one.is_string() ? one.get<std::string>() : one.dump());
  }
  try {
    option.run_callback();
  } catch (const CLI::Error& error) {
    reject(fmt::format("{}: {}", where, error.what()));
  }
}

// Adds a row of the table; `otherwise` is the text for its default.
template <class T>
CLI::Option* add(CLI::App& app, const char* flag, T& value, const char* type,
                 const char* otherwise, const char* help) {
  return app.add_option(flag, value, help)
      ->type_name(type)
      ->default_str(otherwise);
}

}  // namespace

CommandLine::CommandLine(CLI::App& app) : app_(app) {
  app_.allow_extras();
  add_training_options();
  add_run_options();
  // If a value is given twice, the later one counts.
  for (CLI::Option* option : app_.get_options())
    if (option->get_expected_max() == 1) option->take_last();
}

void CommandLine::add_training_options() {
  Options& o = invocation_.options;
  add(app_, "--data", o.data, "FILE", "",
      "Text, or any bytes; the last tenth of each file is held out for "
      "validation");
  add(app_, "--optimizer", o.optimizer, "NAME", "onebit_adam", kOptimizers)
      ->check(one_of(kOptimizers));
  add(app_, "--semantics", o.semantics, "NAME", "corrected",
      "corrected, or deepspeed for DeepSpeed's numbers bit for bit")
      ->check(one_of("corrected, deepspeed"));
  add(app_, "--freeze-step", o.freeze_step, "N|auto",
      "steps/5, or the end of the warm-up if that is later",
      "Last exact step of onebit_adam, lean_onebit_adam and onebit_lamb")
      ->transform(count_or_auto());
  add(app_, "--steps", o.steps, "N", "500", "Updates")->check(count(1));
  add(app_, "--batch", o.batch, "N", "8", "Sequences per rank and backward")
      ->check(count(1));
  add(app_, "--context", o.context, "N", "64", "Bytes per sequence")
      ->check(count(1));
  add(app_, "--layers", o.layers, "N", "4", "Transformer blocks")
      ->check(count(1));
  add(app_, "--width", o.width, "N", "128", "Numbers per position")
      ->check(count(1));
  add(app_, "--heads", o.heads, "N", "4", "Attention heads")->check(count(1));
  add(app_, "--lr", o.lr, "RATE", "1.5e-3, LAMB 1e-2", "Highest learning rate")
      ->check(amount());
  add(app_, "--warmup-steps", o.warmup_steps, "N", "50",
      "Steps in which the learning rate rises; then it falls by a cosine to a "
      "tenth")
      ->check(count(0));
  add(app_, "--weight-decay", o.weight_decay, "RATE", "0", "AdamW's")
      ->check(amount());
  add(app_, "--clip", o.clip, "NORM", "1",
      "Largest norm of the gradient, or 0 for no limit (with deepspeed "
      "semantics low-bit optimizers clip only in fp16)")
      ->check(amount());
  add(app_, "--seed", o.seed, "N", "1",
      "Decides the initial parameters and the order of the text");
  add(app_, "--validate-every", o.validate_every, "N", "steps/10",
      "Steps from one validation to the next; 0 validates only after the last "
      "step, which always has a validation")
      ->check(count(0))
      ->group(kKeysOnly);
  add(app_, "--validate-bytes", o.validate_bytes, "N", "65536",
      "Held-out bytes that each validation predicts, evenly spaced over all "
      "files; fewer if there are fewer")
      ->check(count(1))
      ->group(kKeysOnly);
}

void CommandLine::add_run_options() {
  Options& o = invocation_.options;
  add(app_, "--config", config_, "FILE", "",
      "JSON file with DeepSpeed's keys; its object thinwire has Thinwire's "
      "keys and its object train_gpt these flags; a flag wins over its key");
  add(app_, "--set", o.set, "KEY=VALUE", "",
      "A key of such a file, such as zero_optimization.stage=2, or "
      "zero_bits_up=4 of its object thinwire; may be repeated, and wins over "
      "file and flags")
      ->allow_extra_args(false);
  add(app_, "--out", o.out, "DIR", "out/train_gpt",
      "Folder for metrics.jsonl, summary.json and config.json");
  app_.add_flag("--quiet", o.quiet, "Write no progress to stderr");
  add(app_, "--comm", o.comm, "NAME", "what launched this process",
      "local for ranks that are threads of this process, mpi for processes")
      ->check(one_of("local, mpi"));
  add(app_, "--ranks", o.ranks, "N", "1", "Threads that --comm local starts")
      ->check(count(1, kMostRanks));
  add(app_, "--save-every", o.save_every, "N|TIME", "",
      "Save a checkpoint every N steps, or after every TIME such as 10min")
      ->check(within(
          fmt::format("steps in 1 .. {}, or a time such as 30s, 10min or 2h",
                      kMost),
          [](const std::string& text) {
            const auto steps = number_from<std::int64_t>(text).value_or(0);
            return duration_from(text) || (steps >= 1 && steps <= kMost);
          }));
  add(app_, "--keep-last", o.keep_last, "N", "2",
      "Number of newest checkpoints to keep, or 0 for all")
      ->check(count(0));
  add(app_, "--keep-every", o.keep_every, "N", "0",
      "Also keep those of every N-th step, or 0 for none")
      ->check(count(0));
  add(app_, "--checkpoints", o.checkpoints, "DIR", "OUT/checkpoints",
      "Directory of the checkpoints");
  app_.add_flag("--save-sync", o.save_sync,
                "Training waits until a checkpoint is written");
  add(app_, "--resume", o.resume, "DIR|auto", kAutoResume,
      "Continue from a checkpoint, or from the newest one in a directory; "
      "auto, like no value, continues from the newest in --checkpoints, or "
      "begins anew if there is none")
      ->expected(0, 1);
  app_.add_flag("--resume-fallback", o.resume_fallback,
                "If the newest checkpoint is damaged, use the one before it");
  app_.add_flag("--resume-new-data", o.resume_new_data,
                "Continue with another --data or --seed than before");
  add(app_, "--save-on", o.save_on, "SIGNAL,...",
      "USR1, without mpirun also TERM and INT",
      "Signals that save the run and end it with exit code 3 (a second one "
      "interrupts): USR1, USR2, TERM, INT")
      ->delimiter(',')
      ->check(one_of("USR1, USR2, TERM, INT"));
}

void CommandLine::refuse_unknown_flags() const {
  for (const CLI::Option* option : app_.get_options())
    if (option->get_group() == kKeysOnly && option->count() > 0)
      refuse_unknown(app_, "no flag", "--", option->get_lnames().front());
  if (app_.remaining_size() == 0) return;
  const std::string word = app_.remaining().front();
  if (!word.starts_with("--"))
    reject(fmt::format("'{}' is neither a flag nor a flag's value", word));
  refuse_unknown(app_, "no flag", "--", word.substr(2, word.find('=') - 2));
}

// Reads the object train_gpt, which holds options; the other keys are the
// engine's.
void CommandLine::read_config() {
  Options& options = invocation_.options;
  std::vector<config::KeyNote> keys;
  const auto read = [&](const config::AutoValues& autos) {
    keys.clear();
    return config::Config::from_file(config_, &keys, autos, {kOwnObject});
  };
  // Options are read first, because they decide what "auto" means in other
  // keys.
  const config::Config file =
      read({.total_num_steps = kMost, .warmup_num_steps = 0});
  if (const auto own = file.other_objects.find(kOwnObject);
      own != file.other_objects.end())
    read_own_object(own->second);
  options.file = read({.total_num_steps = options.steps,
                       .warmup_num_steps = options.warmup_steps,
                       .learning_rate = options.lr});
  options.file->other_objects.clear();
  std::erase_if(keys, [](const auto& key) { return key.path == kOwnObject; });
  const bool has_keys = std::ranges::any_of(keys, [](const auto& key) {
    return key.kind != config::KeyNote::Kind::kAbsent;
  });
  if (!has_keys) options.file.reset();
  if (has_keys) options.file_keys = std::move(keys);
}

void CommandLine::read_own_object(const std::string& section) {
  const nlohmann::json object = nlohmann::json::parse(section);
  for (const auto& [key, value] : object.items()) {
    CLI::Option* option = app_.get_option_no_throw(flag_of(key));
    const bool is_only_flag =
        key == "config" || key == "help" || key == "version";
    if (option == nullptr || is_only_flag)
      refuse_unknown(app_, fmt::format("{}: train_gpt has no key", config_), "",
                     flag_of(key).substr(2));
    if (option->count() == 0)
      set(*option, fmt::format("{}: train_gpt.{}", config_, key), value);
  }
}

// Reads --set train_gpt.KEY=VALUE, for keys that are not flags.
void CommandLine::read_own_settings() {
  const std::string own = fmt::format("{}.", kOwnObject);
  for (const std::string& setting : std::vector(invocation_.options.set)) {
    if (!setting.starts_with(own)) continue;
    const std::size_t equals = setting.find('=');
    const std::string key = setting.substr(own.size(), equals - own.size());
    CLI::Option* option = app_.get_option_no_throw(flag_of(key));
    require(option != nullptr && option->get_group() == kKeysOnly,
            "--set train_gpt.KEY", "validate_every or validate_bytes", key);
    set(*option, "--set", setting.substr(equals + 1));
  }
}

void CommandLine::resolve() {
  refuse_unknown_flags();
  if (!config_.empty()) read_config();
  validate(invocation_.options);
  read_own_settings();
  const Options& options = invocation_.options;
  const config::Config config = training_config(options);
  for (const std::string& path : options.data)
    require_outside(options.out, "--data", path);
  if (const std::string& path = config.telemetry.path; !path.empty())
    require_outside(options.out, "telemetry.path", path);
  invocation_.saving = saving_of(options, config);
  const std::string& root = invocation_.saving.files.root;
  require(whole(root) / "" != whole(options.out) / "", "--checkpoints",
          "another directory than --out", root);
}

const Invocation& CommandLine::finish() {
  try {
    resolve();
  } catch (const Error& error) {
    throw CLI::ParseError(error.what(), CLI::ExitCodes::ValidationError);
  }
  return invocation_;
}

}  // namespace thinwire::train_gpt
