// SPDX-License-Identifier: Apache-2.0
// Two tables: flags, and keys that have none. Each name is, with "_" in place
// of
// "-", a key of the object "train_gpt" of a configuration file.
#include "examples/train_gpt/options/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/duration.h"
#include "core/edit_distance.h"
#include "core/require.h"
#include "examples/train_gpt/options/training_config.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr int kMostRanks = 1024;
constexpr const char* kOptimizers =
    "adam, onebit_adam, lamb, onebit_lamb, zero_one_adam, lean_onebit_adam";

// Flags and keys of earlier versions, and their replacements.
constexpr std::pair<std::string_view, std::string_view> kReplaced[] = {
    {"semantics", "write --set semantics=NAME"},
    {"freeze-step",
     "write --set optimizer.params.freeze_step=N or --set auto_freeze=true"},
    {"batch", "write --set train_micro_batch_size_per_gpu=N"},
    {"lr", "write --set optimizer.params.lr=RATE"},
    {"weight-decay", "write --set optimizer.params.weight_decay=RATE"},
    {"clip", "write --set gradient_clipping=NORM"},
    {"keep-last", "write --set checkpoint.keep_last=N"},
    {"keep-every", "write --set checkpoint.keep_every=N"},
    {"checkpoints", "write --set checkpoint.root=DIR"},
    {"save-sync", "write --set checkpoint.asynchronous=false"},
    {"comm",
     "write --ranks N for ranks that are threads, or start processes with "
     "mpirun -np N"},
    {"set", "a file has these keys themselves"},
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

CLI::Validator one_of(const std::string& words) {
  return within("one of " + words, [words](const std::string& text) {
    return fmt::format(", {},", words).find(fmt::format(" {},", text)) !=
           std::string::npos;
  });
}

void validate(const Options& options) {
  if (options.data.empty())
    reject("--data FILE... is missing: the text to train on");
  require(options.width % options.heads == 0, "train_gpt.heads",
          fmt::format("a divisor of train_gpt.width {}", options.width),
          options.heads);
  if (const int launched = env::launched_ranks(); options.ranks && launched > 1)
    reject(fmt::format(
        "--ranks: this is one of {} launched processes, and each would train "
        "alone; start it without a launcher",
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

// A run must not overwrite files that it reads, nor mix its lines with
// telemetry.
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
// the nearest of `known`. `dashes` precede flags; keys have none.
[[noreturn]] void refuse_unknown(const std::string& where,
                                 std::string_view dashes,
                                 const std::string& name,
                                 const std::vector<std::string>& known) {
  const std::string unknown = fmt::format("{} {}{}", where, dashes, name);
  for (const auto& [old, instead] : kReplaced)
    if (old == name) reject(fmt::format("{}; {}", unknown, instead));
  // "resume-new" means "resume-new-data", and "width-of-layer" means "width".
  std::string_view nearest;
  for (const std::string& other : known)
    if (!name.empty() && (other.starts_with(name) || name.starts_with(other)))
      nearest = other;
  if (nearest.empty()) nearest = nearest_name(name, known);
  if (nearest.empty()) reject(unknown);
  reject(fmt::format("{}; the nearest is {}{}", unknown, dashes, nearest));
}

// Returns the names of options, without dashes at their beginning.
std::vector<std::string> names_of(
    std::initializer_list<const CLI::App*> tables) {
  std::vector<std::string> names;
  for (const CLI::App* table : tables)
    for (const CLI::Option* option : table->get_options())
      names.push_back(option->get_lnames().front());
  return names;
}

// Returns whether a flag is no key of a file.
bool is_only_flag(const std::string& name) {
  return name == "config" || name == "set" || name == "help" ||
         name == "version";
}

// Returns the learning rate that --set gives: also that of a file's "auto".
std::optional<double> learning_rate_of(const std::vector<std::string>& set) {
  constexpr std::string_view kKey = "optimizer.params.lr=";
  std::optional<double> rate;
  for (const std::string& setting : set)
    if (setting.starts_with(kKey))
      rate = number_from<double>(setting.substr(kKey.size()));
  return rate;
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
    // The text begins with the option's name, and `where` has it already.
    const std::string name = option.get_name() + ": ";
    std::string_view text = error.what();
    if (text.starts_with(name)) text.remove_prefix(name.size());
    reject(fmt::format("{}: {}", where, text));
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

// Lists the keys for --help.
std::string help_of(const CLI::App& keys) {
  std::string text = fmt::format("Keys of --set {}.KEY=VALUE:", kOwnObject);
  for (const CLI::Option* option : keys.get_options()) {
    std::string key = option->get_lnames().front();
    std::replace(key.begin(), key.end(), '-', '_');
    const std::string otherwise = option->get_default_str();
    text += fmt::format(
        "\n  {:<27} {}{}", fmt::format("{} {}", key, option->get_type_name()),
        option->get_description(),
        otherwise.empty() ? "" : fmt::format(" [{}]", otherwise));
  }
  return text;
}

}  // namespace

CommandLine::CommandLine(CLI::App& app)
    : app_(app), keys_(std::make_unique<CLI::App>()) {
  app_.allow_extras();
  keys_->set_help_flag();
  add_flags();
  add_keys();
  // If a value is given twice, the later one counts.
  for (CLI::App* table : {&app_, keys_.get()})
    for (CLI::Option* option : table->get_options())
      if (option->get_expected_max() == 1) option->take_last();
  app_.footer(help_of(*keys_));
}

CommandLine::~CommandLine() = default;

void CommandLine::add_flags() {
  Options& o = invocation_.options;
  add(app_, "--data", o.data, "FILE", "",
      "Text, or any bytes; the last tenth of each file is held out for "
      "validation");
  add(app_, "--optimizer", o.optimizer, "NAME", "onebit_adam", kOptimizers)
      ->check(one_of(kOptimizers));
  add(app_, "--steps", o.steps, "N", "500", "Updates")->check(count(1));
  add(app_, "--out", o.out, "DIR", "out/train_gpt",
      "Folder for metrics.jsonl, summary.json and config.json");
  add(app_, "--ranks", o.ranks, "N", "what launched this process",
      "Ranks that are threads of this process; without it ranks are the "
      "processes that mpirun or another launcher starts")
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
  add(app_, "--resume", o.resume, "DIR|auto", kAutoResume,
      "Continue from a checkpoint, or from the newest one in a directory; "
      "auto, like no value, continues from the newest of this run, or begins "
      "anew if there is none")
      ->expected(0, 1);
  add(app_, "--seed", o.seed, "N", "1",
      "Decides the initial parameters and the order of the text");
  add(app_, "--config", config_, "FILE", "",
      "JSON file with DeepSpeed's keys; its object thinwire has Thinwire's "
      "keys, and its object train_gpt these flags and the keys below; a flag "
      "wins over its key");
  add(app_, "--set", o.set, "KEY=VALUE", "",
      "A key of such a file, such as zero_optimization.stage=2, or "
      "zero_bits_up=4 of its object thinwire; may be repeated, and wins over "
      "file and flags")
      ->allow_extra_args(false);
}

void CommandLine::add_keys() {
  Options& o = invocation_.options;
  CLI::App& keys = *keys_;
  add(keys, "--context", o.context, "N", "64", "Bytes per sequence")
      ->check(count(1));
  add(keys, "--layers", o.layers, "N", "4", "Transformer blocks")
      ->check(count(1));
  add(keys, "--width", o.width, "N", "128", "Numbers per position")
      ->check(count(1));
  add(keys, "--heads", o.heads, "N", "4", "Attention heads")->check(count(1));
  add(keys, "--warmup-steps", o.warmup_steps, "N", "50",
      "Steps in which the learning rate rises; then it falls by a cosine to a "
      "tenth")
      ->check(count(0));
  add(keys, "--validate-every", o.validate_every, "N", "steps/10",
      "Steps from one validation to the next; 0 validates only after the last "
      "step, which always has a validation")
      ->check(count(0));
  add(keys, "--validate-bytes", o.validate_bytes, "N", "65536",
      "Held-out bytes that each validation predicts, evenly spaced over all "
      "files; fewer if there are fewer")
      ->check(count(1));
  add(keys, "--quiet", o.quiet, "BOOL", "false", "Write no progress to stderr")
      ->check(one_of("true, false"));
  add(keys, "--resume-fallback", o.resume_fallback, "BOOL", "false",
      "If the newest checkpoint is damaged, resume from the one before it")
      ->check(one_of("true, false"));
  add(keys, "--resume-new-data", o.resume_new_data, "BOOL", "false",
      "Resume with another --data or --seed than before")
      ->check(one_of("true, false"));
  add(keys, "--save-on", o.save_on, "SIGNAL,...",
      "USR1, without mpirun also TERM and INT",
      "Signals that save the run and end it with exit code 3 (a second one "
      "interrupts): USR1, USR2, TERM, INT")
      ->delimiter(',')
      ->check(one_of("USR1, USR2, TERM, INT"));
}

void CommandLine::refuse_unknown_flags() const {
  if (app_.remaining_size() == 0) return;
  const std::string word = app_.remaining().front();
  if (!word.starts_with("--"))
    reject(fmt::format("'{}' is neither a flag nor a flag's value", word));
  const std::string name = word.substr(2, word.find('=') - 2);
  if (keys_->get_option_no_throw("--" + name) != nullptr) {
    std::string key = name;
    std::replace(key.begin(), key.end(), '-', '_');
    reject(fmt::format("no flag --{}; write --set {}.{}=VALUE", name,
                       kOwnObject, key));
  }
  refuse_unknown("no flag", "--", name, names_of({&app_}));
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
  read_own_settings();
  options.file = read({.total_num_steps = options.steps,
                       .warmup_num_steps = options.warmup_steps,
                       .learning_rate = learning_rate_of(options.set)});
  options.file->other_objects.clear();
  std::erase_if(keys, [](const auto& key) { return key.path == kOwnObject; });
  const bool has_keys = std::ranges::any_of(keys, [](const auto& key) {
    return key.kind != config::KeyNote::Kind::kAbsent;
  });
  if (!has_keys) options.file.reset();
  if (has_keys) options.file_keys = std::move(keys);
}

// Returns the option of a key of the object train_gpt, which `where` has.
CLI::Option& CommandLine::option_of(const std::string& key,
                                    const std::string& where) const {
  const std::string flag = flag_of(key);
  std::vector<std::string> known = names_of({keys_.get(), &app_});
  std::erase_if(known, is_only_flag);
  if (std::ranges::find(known, flag.substr(2)) == known.end())
    refuse_unknown(fmt::format("{}: {} has no key", where, kOwnObject), "",
                   flag.substr(2), known);
  CLI::Option* const own = keys_->get_option_no_throw(flag);
  return own != nullptr ? *own : *app_.get_option(flag);
}

void CommandLine::read_own_object(const std::string& section) {
  const nlohmann::json object = nlohmann::json::parse(section);
  for (const auto& [key, value] : object.items())
    if (CLI::Option& option = option_of(key, config_); option.count() == 0)
      set(option, fmt::format("{}: {}.{}", config_, kOwnObject, key), value);
}

// Reads --set train_gpt.KEY=VALUE.
void CommandLine::read_own_settings() {
  const std::string own = fmt::format("{}.", kOwnObject);
  for (const std::string& setting : std::vector(invocation_.options.set)) {
    if (!setting.starts_with(own)) continue;
    const std::size_t equals = setting.find('=');
    const std::string key = setting.substr(own.size(), equals - own.size());
    set(option_of(key, "--set"), fmt::format("--set {}{}", own, key),
        setting.substr(equals + 1));
  }
}

void CommandLine::resolve() {
  refuse_unknown_flags();
  const Options& options = invocation_.options;
  for (const std::string& setting : options.set)
    require(setting.find('=') != std::string::npos && setting.front() != '=',
            "--set", "KEY=VALUE", fmt::format("'{}'", setting));
  if (config_.empty()) read_own_settings();
  if (!config_.empty()) read_config();
  validate(options);
  const config::Config config = training_config(options);
  for (const std::string& path : options.data)
    require_outside(options.out, "--data", path);
  if (const std::string& path = config.telemetry.path; !path.empty())
    require_outside(options.out, "telemetry.path", path);
  invocation_.saving = saving_of(options, config);
  const std::string& root = invocation_.saving.files.root;
  require(whole(root) / "" != whole(options.out) / "", "checkpoint.root",
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
