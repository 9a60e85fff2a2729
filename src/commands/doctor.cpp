// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/host_name.h"
#include "commands/commands.h"
#include "commands/host_path.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::commands {

namespace {

/// Label of the machine on which the host path of tensors on devices was
/// tested. A test compares it with the rows of python/thinwire/_devices.py.
constexpr const char* kDevicesTested =
    "test device; 8 of 10 features also ran on NVIDIA H200";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return lines;
}

/// Collects the lines of a report, and advice for this machine.
class Report {
 public:
  void say(std::string_view name, std::string_view text) {
    lines_ += fmt::format("{:<14}{}\n", name, text);
  }
  void advise(std::string advice) { advice_.push_back(std::move(advice)); }
  [[nodiscard]] const std::string& lines() const { return lines_; }
  [[nodiscard]] std::string conclusion(const Front& front) const {
    if (!front.not_ready.empty())
      return fmt::format("ready: no: {}\n", front.not_ready);
    std::vector<std::string> missing;
    for (const auto& [name, text] : front.lines)
      if (text.starts_with("no: ")) missing.push_back(name);
    if (advice_.empty() && missing.empty())
      return "ready: everything that this version can use is installed\n";
    std::string text = "ready: works";
    if (!advice_.empty())
      text += fmt::format("; recommended: {}", fmt::join(advice_, "; "));
    if (!missing.empty())
      text += fmt::format("; optional, and not installed: {}",
                          fmt::join(missing, ", "));
    return text + '\n';
  }

 private:
  std::string lines_;
  std::vector<std::string> advice_;
};

void say_threads(Report& report) {
  const int asked = env::num_threads();
  report.say("threads",
             asked > 0
                 ? fmt::format("{} per rank (THINWIRE_NUM_THREADS)", asked)
                 : "1 per rank (THINWIRE_NUM_THREADS is not set)");
}

// The time-out is unknown in Python, because a process group may set its own.
void say_timeout(const Front& front, Report& report) {
  const std::chrono::duration<double> limit = env::timeout();
  if (!front.has_transports)
    report.say("timeout", fmt::format("{} s per collective", limit.count()));
}

// Python has other transports, and checks the name when a process joins.
void require_known_backend(const Front& front) {
  const std::optional<std::string> chosen = env::comm_backend();
  if (!chosen || front.has_transports) return;
  std::vector<std::string> known;
  for (const comm::Backend& backend : comm::backends())
    known.emplace_back(backend.name);
  if (std::find(known.begin(), known.end(), *chosen) == known.end())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("THINWIRE_COMM must be one of {}, got \"{}\"",
                            fmt::join(known, ", "), *chosen));
}

void say_backends(const Front& front, Report& report) {
  for (const comm::Backend& backend : comm::backends()) {
    const std::string why_not = backend.why_unavailable();
    if (why_not.empty()) {
      report.say(backend.name, fmt::format("yes: {}", backend.version()));
    } else if (!front.has_transports) {
      report.say(backend.name, fmt::format("no: {}", why_not));
      if (backend.name == "mpi")
        report.advise(front.is_in_build_tree
                          ? "MPI, for several machines (scripts/bootstrap)"
                          : "a build of Thinwire with MPI, for several "
                            "machines");
    }
  }
  if (!front.has_transports)
    report.say("devices", "python -m thinwire doctor names those of torch");
  report.say("tested", fmt::format("tensors on devices: {}", kDevicesTested));
}

void say_huge_pages(Report& report) {
  constexpr const char* kSetting =
      "/sys/kernel/mm/transparent_hugepage/enabled";
  std::ifstream file(kSetting);
  std::string line;
  std::getline(file, line);
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    report.say("huge pages", fmt::format("unknown: {} says nothing", kSetting));
    return;
  }
  const std::string mode = line.substr(begin + 1, end - begin - 1);
  report.say("huge pages",
             fmt::format("{}: {}", mode == "never" ? "no" : "yes", mode));
  if (mode == "never")
    report.advise(
        fmt::format("huge pages (echo madvise > {}, as root)", kSetting));
}

void say_bandwidth(Report& report) {
  std::string text =
      fmt::format("{:.1f} GB/s with 1 thread", memory_bandwidth(1));
  if (num_cores() > 1)
    text += fmt::format(", {:.1f} GB/s with {}", memory_bandwidth(num_cores()),
                        num_cores());
  report.say("bandwidth", text + " (a += b, 256 MiB in all)");
}

Report what_is_here(const Front& front) {
  Report report;
  report.say("version", THINWIRE_VERSION);
  report.say("compiler", THINWIRE_BUILD_COMPILER ", " THINWIRE_BUILD_TYPE);
  report.say("processor", fmt::format("{}, {} cores", kernels::processor_name(),
                                      num_cores()));
  report.say("kernels", fmt::format("{}, of {}", kernels::cpu_target(),
                                    fmt::join(kernels::cpu_targets(), " ")));
  report.say("prefetch",
             fmt::format("{}: {}", kernels::prefetches() ? "on" : "off",
                         kernels::prefetch_reason()));
  say_threads(report);
  say_timeout(front, report);
  require_known_backend(front);
  say_backends(front, report);
  for (const auto& [name, text] : front.lines) report.say(name, text);
  for (const std::string& advice : front.advice) report.advise(advice);
  say_huge_pages(report);
  return report;
}

std::string say_hosts(const std::vector<std::string>& host_of) {
  std::map<std::string, int> ranks_of;
  for (const std::string& host : host_of) ++ranks_of[host];
  std::vector<std::string> hosts;
  for (const auto& [host, ranks] : ranks_of)
    hosts.push_back(fmt::format("{}: {}", host, ranks));
  return fmt::format("{}, on {} host{} ({}); messages arrive", host_of.size(),
                     hosts.size(), hosts.size() == 1 ? "" : "s",
                     fmt::join(hosts, ", "));
}

/// Returns a line for each line in which ranks of a host differ from rank 0.
std::string differences(const std::vector<std::string>& reports,
                        const std::vector<std::string>& host_of) {
  const std::vector<std::string> first = lines_of(reports[0]);
  using Difference = std::pair<std::string, std::string>;  // host, line
  std::vector<Difference> found;
  std::map<Difference, std::vector<std::string>> ranks_of;
  for (std::size_t rank = 1; rank < reports.size(); ++rank) {
    for (const std::string& line : lines_of(reports[rank])) {
      if (std::find(first.begin(), first.end(), line) != first.end()) continue;
      std::vector<std::string>& ranks = ranks_of[{host_of[rank], line}];
      if (ranks.empty()) found.emplace_back(host_of[rank], line);
      ranks.push_back(std::to_string(rank));
    }
  }
  if (found.empty()) return "all ranks have the same\n";
  std::string text;
  for (const Difference& difference : found) {
    const auto& ranks = ranks_of[difference];
    text += fmt::format("differs: rank{} {} on {}: {}\n",
                        ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                        difference.first, difference.second);
  }
  return text;
}

// Writes once, so that blocks of several processes do not mix.
void print(const Front& front, const std::string& text) {
  front.out << text << std::flush;
}

std::shared_ptr<comm::Communicator> join_ranks(const Front& front,
                                               const Report& report) {
  try {
    return front.join();
  } catch (const Error&) {
    print(front, fmt::format("{} on {}\n{}",
                             env::launched_rank()
                                 ? fmt::format("rank {}", *env::launched_rank())
                                 : "a rank",
                             comm::host_name(), report.lines()));
    throw;
  }
}

// Rank 0 prints the report. Only rank 0 measures, while the others wait.
void run_doctor(const Front& front) {
  Report report = what_is_here(front);
  if (!front.join) {
    say_bandwidth(report);
    print(front, report.lines() + report.conclusion(front));
  } else {
    const auto comm = join_ranks(front, report);
    const auto reports = comm::gather_texts(*comm, report.lines());
    const auto host_of = comm::gather_texts(*comm, comm::host_name());
    if (comm->rank() == 0) {
      report.say("ranks", say_hosts(host_of));
      say_bandwidth(report);
      print(front, report.lines() + differences(reports, host_of) +
                       report.conclusion(front));
    }
    comm->barrier();
  }
  if (!front.not_ready.empty())
    throw Error(ErrorCode::kUnavailable, front.not_ready);
}

}  // namespace

void add_doctor(CLI::App& app, const Front& front) {
  app.add_subcommand(
         "doctor",
         "Report what this machine and build have, and suggest improvements; "
         "under a launcher it checks all ranks and their messages")
      ->callback([&front] { run_doctor(front); });
}

}  // namespace thinwire::commands
