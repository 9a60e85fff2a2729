// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/add_commands.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "apps/thinwire/replay/replay.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/error.h"

namespace thinwire::apps {

namespace {

using replay::CaseFolder;
using replay::Outcome;

struct ReplayFlags {
  std::string semantics = "deepspeed";
  std::string comm = "local";
  std::string filter;
  std::vector<std::string> folders;
};

std::unique_ptr<comm::Communicator> mpi_group() {
  for (const comm::Backend& backend : comm::backends()) {
    if (backend.name != "mpi") continue;
    const std::string why = backend.why_unavailable();
    if (!why.empty())
      throw Error(ErrorCode::kUnavailable, fmt::format("--comm mpi: {}", why));
    return backend.make({});
  }
  throw Error(ErrorCode::kUnavailable, "--comm mpi: no such backend");
}

std::regex filter_regex(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--filter must be a regular expression, got '{}' "
                            "({})",
                            text, error.what()));
  }
}

void print(const CaseFolder& folder, const replay::Result& result) {
  constexpr const char* kOutcomes[] = {"PASS", "FAIL", "SKIP"};
  const bool refused = result.outcome == Outcome::kFailed &&
                       result.text.starts_with("unsupported");
  fmt::print("{} {}{} {}\n",
             kOutcomes[static_cast<std::size_t>(result.outcome)], folder.name,
             refused ? ":" : " ", result.text);
}

void run(const ReplayFlags& flags) {
  const config::Semantics semantics = config::semantics_from(flags.semantics);
  const std::regex filter = filter_regex(flags.filter);
  std::unique_ptr<comm::Communicator> mpi;
  if (flags.comm == "mpi") mpi = mpi_group();
  const bool prints = mpi == nullptr || mpi->rank() == 0;
  std::map<Outcome, int> count;
  for (const std::string& name : flags.folders)
    for (const CaseFolder& folder : replay::find_cases(name)) {
      if (!std::regex_search(folder.name, filter)) continue;
      const replay::Result result =
          mpi ? replay::replay_on(*mpi, folder, semantics)
              : replay::replay_local(folder, semantics);
      ++count[result.outcome];
      if (prints) print(folder, result);
    }
  const int passed = count[Outcome::kPassed], failed = count[Outcome::kFailed];
  if (prints)
    fmt::print("{} passed, {} failed, {} skipped\n", passed, failed,
               count[Outcome::kSkipped]);
  if (failed > 0)
    throw std::runtime_error(
        fmt::format("{} of {} cases failed; each has a line above", failed,
                    passed + failed));
  if (passed == 0)
    throw std::runtime_error("no case was replayed; check --filter and DIR");
}

}  // namespace

void add_replay(CLI::App& app) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "Repeat recorded trajectories with the library and compare bit for bit");
  command
      ->add_option("--semantics", flags->semantics,
                   "deepspeed (like the recordings) or corrected")
      ->check(CLI::IsMember({"deepspeed", "corrected"}))
      ->capture_default_str();
  command
      ->add_option(
          "--comm", flags->comm,
          "local for ranks that are threads; mpi under mpirun, with as "
          "many ranks as the cases have")
      ->check(CLI::IsMember({"local", "mpi"}))
      ->capture_default_str();
  command->add_option(
      "--filter", flags->filter,
      "replay only cases whose name matches this regular expression");
  command
      ->add_option("DIR", flags->folders,
                   "a case, which has meta.json, or a folder to search")
      ->required();
  command->callback([flags] { run(*flags); });
}

}  // namespace thinwire::apps
