// SPDX-License-Identifier: Apache-2.0
#include "apps/support/program.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <iostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/core/log.h"

namespace thinwire::apps::program_test {

namespace {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// A program with one subcommand of each kind.
Outcome run(const std::vector<const char*>& arguments) {
  CLI::App app("Does things", "things");
  app.require_subcommand(1);
  app.add_subcommand("work")->callback([] { std::cout << "result\n"; });
  app.add_subcommand("talk")->callback([] {
    log(LogLevel::kDebug, "details");
    log(LogLevel::kInfo, "lr is\nignored");
    log(LogLevel::kWarning, "odd");
  });
  app.add_subcommand("refuse")->callback([] {
    throw Error(ErrorCode::kInvalidArgument, "size must be >= 1, got 0");
  });
  app.add_subcommand("differ")->callback(
      [] { throw std::runtime_error("first line\n\nsecond line\n"); });
  std::vector<const char*> argv{"things"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  Outcome outcome;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  outcome.exit_code =
      run_program(app, static_cast<int>(argv.size()), argv.data());
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(Program, EndsWithACodeAndSaysWhyInOneLine) {
  for (const auto& [command, code, out, err] : std::initializer_list<
           std::tuple<const char*, int, const char*, const char*>>{
           {"work", 0, "result\n", ""},
           {"talk", 0, "",
            "things: info: lr is; ignored\nthings: warning: odd\n"},
           {"refuse", 1, "", "things: size must be >= 1, got 0\n"},
           {"differ", 1, "", "things: first line; second line\n"}}) {
    const Outcome outcome = run({command});
    EXPECT_EQ(outcome.exit_code, code) << command;
    EXPECT_EQ(outcome.out, out);
    EXPECT_EQ(outcome.err, err);
  }
}

TEST(Program, EndsWithTwoOnWrongUsage) {
  for (const auto& arguments : std::vector<std::initializer_list<const char*>>{
           {}, {"play"}, {"work", "--hard"}, {"work", "now"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("things: ")) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  }
}

TEST(Program, KnowsHelpAndVersionEverywhere) {
  const std::string version = "thinwire " THINWIRE_VERSION "\n";
  EXPECT_EQ(run({"--version"}).out, version);
  EXPECT_EQ(run({"work", "--version"}).out, version);
  EXPECT_EQ(run({"work", "--version"}).exit_code, 0);
  EXPECT_NE(run({"--help"}).out.find("Does things"), std::string::npos);
  EXPECT_NE(run({"work", "--help"}).out.find("things work"), std::string::npos);
  EXPECT_EQ(run({"work", "--help"}).exit_code, 0);
}

}  // namespace

}  // namespace thinwire::apps::program_test
