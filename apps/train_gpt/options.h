// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/optim/semantics.h"

namespace thinwire::train_gpt {

/// How the ranks of a run reach each other.
enum class CommChoice {
  kEnvironment,  ///< What launched the process, or THINWIRE_COMM.
  kLocal,        ///< Ranks are threads of this process.
  kMpi,
};

/// Everything a training run is asked for. `train_gpt --help` explains.
struct Options {
  std::vector<std::string> data;
  std::string optimizer = "onebit_adam";
  std::int64_t steps = 500;
  std::int64_t batch = 8;
  std::int64_t context = 64;
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  double lr = 1.5e-3;
  std::int64_t warmup_steps = 50;
  double weight_decay = 0;
  double clip = 1.0;  ///< 0: never.
  std::uint64_t seed = 1;
  std::int64_t freeze_step = 100;  ///< Or optim::kAutoFreeze.
  optim::Semantics semantics = optim::Semantics::kCorrected;
  std::string out = "out/train_gpt";
  bool quiet = false;
  CommChoice comm = CommChoice::kEnvironment;
  int ranks = 1;  ///< With CommChoice::kLocal.

  /// Fixed by what was measured (docs/algorithms.md), so no flags.
  static constexpr double kBeta1 = 0.9;
  static constexpr double kBeta2 = 0.99;
};

/// What the command line asks for.
struct Invocation {
  Options options;
  /// Folders of earlier runs to compare; empty: train.
  std::vector<std::string> compare;
};

/// Parses the command line into an Invocation.
class CommandLine {
 public:
  /// Adds the flags to `app`, which must outlive this object.
  explicit CommandLine(CLI::App& app);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// After app.parse(): reads the file that --config names (flags win) and
  /// checks everything. Throws UsageError naming the flag or key, its range and
  /// the value given.
  [[nodiscard]] const Invocation& finish();

 private:
  void add_training_flags();
  void add_run_flags();
  void refuse_later_flags() const;
  void refuse_unknown_flags() const;
  void apply_config();
  void resolve();
  [[nodiscard]] std::vector<std::string> flag_names() const;

  CLI::App& app_;
  Invocation invocation_;
  // Text until all flags are there: "auto" is not a number.
  std::string freeze_step_ = "100";
  std::string semantics_ = "corrected";
  std::string comm_;
  std::string config_;
};

/// The settings that decide a run's result, by flag name, in a fixed order:
/// what ranks compare, reports show and config.json holds.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> settings_of(
    const Options& options);

}  // namespace thinwire::train_gpt
