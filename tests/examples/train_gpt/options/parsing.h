// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "examples/train_gpt/options/command_line.h"

namespace thinwire::train_gpt {

inline Invocation parse_all(std::vector<const char*> arguments) {
  CLI::App app("", "train_gpt");
  CommandLine command_line(app);
  arguments.insert(arguments.begin(), "train_gpt");
  app.parse(static_cast<int>(arguments.size()), arguments.data());
  return command_line.finish();
}

inline Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"--data", "a.txt"});
  return parse_all(std::move(arguments)).options;
}

// Expects wrong usage whose message has all of `parts`.
inline void expect_usage_error(std::initializer_list<std::string> parts,
                               std::vector<const char*> arguments) {
  try {
    static_cast<void>(parse(std::move(arguments)));
  } catch (const CLI::ParseError& error) {
    EXPECT_NE(error.get_exit_code(), 0);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error was thrown";
}

class ConfigFile : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path) << text; }
  void TearDown() override { std::filesystem::remove(path); }

  const std::string path =
      std::filesystem::temp_directory_path() /
      ("thinwire_command_line_test_" +
       std::string(
           ::testing::UnitTest::GetInstance()->current_test_info()->name()) +
       ".json");
};

}  // namespace thinwire::train_gpt
