// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/add_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "apps/thinwire/bench/result.h"
#include "apps/thinwire/bench/rows.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace thinwire::apps {

namespace {

using bench::ExchangeRow;
using bench::Printer;
using bench::Row;

struct BenchFlags {
  bool json = false;
  bool by_prefetch = false;
  std::string filter;
  std::size_t elements = std::size_t{1} << 25;  // 128 MiB of floats
  int threads = 0;
  int rounds = 9;
  double link_gbps = 0;
};

template <class AnyRow>
std::vector<const AnyRow*> chosen(std::span<const AnyRow> rows,
                                  const std::string& filter) {
  const std::regex regex(filter);
  std::vector<const AnyRow*> result;
  for (const AnyRow& row : rows)
    if (std::regex_search(row.name, regex)) result.push_back(&row);
  return result;
}

template <class AnyRow>
std::size_t longest_name(const std::vector<const AnyRow*>& rows) {
  std::size_t longest = 0;
  for (const AnyRow* row : rows) longest = std::max(longest, row->name.size());
  return longest;
}

// Returns the chosen rows in pairs, each pair once.
std::vector<Row> pairs_of(const std::vector<const Row*>& rows) {
  std::vector<Row> pairs;
  const auto add = [&](const Row& row) {
    const auto has_its_name = [&](const Row& r) { return r.name == row.name; };
    if (std::none_of(pairs.begin(), pairs.end(), has_its_name))
      pairs.push_back(row);
  };
  for (const Row* row : rows) {
    if (row->prefetch)
      add(*row);
    else
      for (const Row& one : bench::by_prefetch(*row)) add(one);
  }
  return pairs;
}

[[noreturn]] void complain_nothing_chosen(const BenchFlags& flags,
                                          bool other_kind, const char* how) {
  if (other_kind)
    throw std::runtime_error(fmt::format(
        "--filter '{}' names only rows that {}", flags.filter, how));
  std::string names;
  for (const Row& row : bench::rows()) names += row.name + ", ";
  for (const ExchangeRow& row : bench::exchange_rows())
    names += row.name + ", ";
  names.resize(names.size() - 2);
  throw std::runtime_error(fmt::format(
      "--filter '{}' matches no row; there are {}", flags.filter, names));
}

std::vector<int> thread_counts(const BenchFlags& flags) {
  if (flags.threads > 0) return {flags.threads};
  if (std::thread::hardware_concurrency() < 2) return {1};
  return {1, 2};
}

void run_alone(const BenchFlags& flags) {
  auto rows = chosen(bench::rows(), flags.filter);
  const auto pairs = flags.by_prefetch ? pairs_of(rows) : std::vector<Row>();
  if (flags.by_prefetch) rows = chosen<Row>(pairs, "");
  if (rows.empty())
    complain_nothing_chosen(
        flags, !chosen(bench::exchange_rows(), flags.filter).empty(),
        "exchange with other ranks: start it with mpirun, as in mpirun -np 2 "
        "thinwire bench --filter exchange");
  Printer printer(std::cout, flags.json, longest_name(rows),
                  bench::this_machine());
  for (const auto& group : bench::in_groups(rows))
    for (const int threads : thread_counts(flags))
      for (const bench::Result& result :
           bench::measure(group, {.elements = flags.elements,
                                 .threads = threads,
                                 .rounds = flags.rounds}))
        printer.print(result);
}

void run_in_job(const BenchFlags& flags) {
  if (flags.by_prefetch)
    throw std::runtime_error(
        "--by-prefetch compares the rows of one rank alone: start it without "
        "mpirun");
  const auto comm = comm::from_environment();
  const auto rows = chosen(bench::exchange_rows(), flags.filter);
  if (rows.empty())
    complain_nothing_chosen(flags, !chosen(bench::rows(), flags.filter).empty(),
                            "need one rank alone: start it without mpirun");
  Printer printer(std::cout, flags.json, longest_name(rows),
                  bench::this_machine());
  for (const ExchangeRow* row : rows) {
    const bench::Result result =
        bench::measure(*comm, *row,
                       {.elements = flags.elements,
                        .threads = std::max(1, flags.threads),
                        .rounds = flags.rounds,
                        .link_gbps = flags.link_gbps});
    if (comm->rank() == 0) printer.print(result);
  }
}

std::string check_regex(const std::string& text) {
  try {
    const std::regex regex(text);
    return "";
  } catch (const std::regex_error& error) {
    return fmt::format("must be a regular expression, got '{}' ({})", text,
                       error.what());
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Compare kernels and whole steps with this machine's memory, and under "
      "mpirun exchanges with its network");
  command->add_flag("--json", flags->json, "print one JSON object per line");
  command
      ->add_option(
          "--filter", flags->filter,
          "measure only rows whose name matches this regular expression")
      ->check(check_regex);
  command->add_flag("--by-prefetch", flags->by_prefetch,
                    "measure every row with the kernels' prefetching and "
                    "without, in the same rounds");
  command
      ->add_option(
          "--elements", flags->elements,
          "elements per array, which should be far more than caches hold")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 36))
      ->capture_default_str();
  command
      ->add_option("--threads", flags->threads,
                   "threads per rank (default: 1, then 2; under mpirun 1)")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--rounds", flags->rounds, "number of rounds of each median")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command
      ->add_option(
          "--link-gbps", flags->link_gbps,
          "speed of each rank's link in Gbit/s, under mpirun; the limit "
          "is then this link instead of a raw transfer")
      ->check(CLI::PositiveNumber);
  command->callback([flags] {
    if (env::launched_ranks() > 1)
      run_in_job(*flags);
    else
      run_alone(*flags);
  });
}

}  // namespace thinwire::apps
