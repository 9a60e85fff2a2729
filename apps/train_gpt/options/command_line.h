// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/train_gpt/options/options.h"

namespace CLI {
class App;
}

namespace thinwire::train_gpt {

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
  void refuse_unknown_flags() const;
  void read_config();
  void require_warmup_steps(const std::vector<config::KeyNote>& keys) const;
  void apply_flags(const std::string& section);
  void resolve_names();
  void resolve_defaults();
  void resolve();
  void resolve_freeze_step();
  [[nodiscard]] bool is_given(const char* flag) const;
  [[nodiscard]] std::vector<std::string> flag_names() const;

  CLI::App& app_;
  SavingFlags saving_;
  Invocation invocation_;
  // Text until all flags are there: "auto" is not a number.
  std::string freeze_step_;
  std::string semantics_ = "corrected";
  std::string precision_ = "fp32";
  std::string comm_;
  std::string config_;
};

}  // namespace thinwire::train_gpt
