// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "examples/train_gpt/options/command_line.h"
#include "support/folder.h"

namespace thinwire::train_gpt {

inline Invocation parse_words(std::vector<std::string> words) {
  CLI::App app("", "train_gpt");
  CommandLine command_line(app);
  std::ranges::reverse(words);  // as CLI11 wants them
  app.parse(words);
  return command_line.finish();
}

// A line's words are what stands between spaces.
inline Invocation parse_all(const std::string& line) {
  std::istringstream words(line);
  return parse_words({std::istream_iterator<std::string>(words), {}});
}

inline Options parse(const std::string& line) {
  return parse_all("--data a.txt " + line).options;
}

// Expects wrong usage whose message has all of `parts`.
template <class Call>
void expect_usage_error_of(const Call& call,
                           std::initializer_list<std::string> parts) {
  try {
    static_cast<void>(call());
  } catch (const CLI::ParseError& error) {
    EXPECT_NE(error.get_exit_code(), 0);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error was thrown";
}

inline void expect_usage_error(const std::string& line,
                               std::initializer_list<std::string> parts) {
  SCOPED_TRACE(line);
  expect_usage_error_of([&] { return parse(line); }, parts);
}

class ConfigFile : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path) << text; }

  const test::Folder folder{};
  const std::string path = folder.in("config.json");
  const std::string config = "--config " + path + " ";
};

}  // namespace thinwire::train_gpt
