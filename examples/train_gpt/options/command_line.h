// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "examples/train_gpt/options/options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace thinwire::train_gpt {

/// Parses the command line into an Invocation.
class CommandLine {
 public:
  /// Adds the flags to `app`, which must outlive this object.
  explicit CommandLine(CLI::App& app);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Reads the file that --config names and checks everything, after
  /// app.parse(). Throws CLI::ParseError naming the flag or key, its range and
  /// the value given.
  [[nodiscard]] const Invocation& finish();

 private:
  void add_flags();
  void add_keys();
  void resolve();
  void refuse_unknown_flags() const;
  void read_config();
  [[nodiscard]] CLI::Option& option_of(const std::string& key,
                                       const std::string& where) const;
  void read_own_object(const std::string& section);
  void read_own_settings();

  CLI::App& app_;
  std::unique_ptr<CLI::App> keys_;  // a table that parses no command line
  Invocation invocation_;
  std::string config_;
};

}  // namespace thinwire::train_gpt
