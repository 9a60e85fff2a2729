// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/result.h"
#include "apps/thinwire/bench/rows.h"
#include "support/errors.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/local.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps::bench::bench_test {
namespace {

TEST(Rows, RunAtAwkwardSizes) {
  for (const Row& row : rows())
    for (const std::size_t elements : {1u, 31u, 33u, 4096u, 4097u})
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        const Variant variant = row.prepare(elements, pool);
        for (int times = 0; times < 2; ++times) {
          if (variant.before) variant.before();
          variant.run();
        }
      }
}

TEST(Rows, HaveDistinctNames) {
  std::set<std::string> names;
  for (const Row& row : rows()) EXPECT_TRUE(names.insert(row.name).second);
  for (const ExchangeRow& row : exchange_rows())
    EXPECT_TRUE(names.insert(row.name).second);
}

// The norm is formed before: one pass more would show.
TEST(Rows, CountTwentySixAndAHalfBytesForACompressedStep) {
  for (const Row& row : rows())
    if (row.name == "onebit_adam/compressed_step@w4") {
      EXPECT_NEAR(row.bytes_per_element, 26.5, 0.05);
      return;
    }
  FAIL() << "no such row";
}

std::vector<const Row*> rows_named(const std::vector<std::string>& names) {
  std::vector<const Row*> found;
  for (const Row& row : rows())
    for (const std::string& name : names)
      if (row.name == name) found.push_back(&row);
  return found;
}

TEST(Groups, AreThePairsThatDifferInPrefetchAlone) {
  std::vector<const Row*> all;
  for (const Row& row : rows()) all.push_back(&row);
  std::vector<std::string> pairs;
  std::size_t count = 0;
  for (const auto& group : in_groups(all)) {
    count += group.size();
    if (group.size() == 1) {
      EXPECT_FALSE(group[0]->prefetch) << group[0]->name;
      continue;
    }
    ASSERT_EQ(group.size(), 2u);
    EXPECT_EQ(group[0]->prefetch, true);
    EXPECT_EQ(group[1]->prefetch, false);
    const std::string stem = group[0]->stem();
    EXPECT_EQ(group[0]->name, stem + "@prefetch_on");
    EXPECT_EQ(group[1]->name, stem + "@prefetch_off");
    ASSERT_EQ(rows_named({stem}).size(), 1u) << "what the pair stands beside";
    EXPECT_EQ(rows_named({stem})[0]->bytes_per_element,
              group[0]->bytes_per_element);
    pairs.push_back(stem);
  }
  EXPECT_EQ(count, all.size());
  EXPECT_EQ(pairs, (std::vector<std::string>{"adam/fp32",
                                             "onebit_adam/compressed_step@w4",
                                             "zero_one_adam/local_step"}));
}

TEST(ByPrefetch, MakesAGroupOfAnyRow) {
  const Row* const norm = rows_named({"norm/sum_of_squares"}).at(0);
  const std::array<Row, 2> pair = by_prefetch(*norm);
  EXPECT_EQ(pair[0].name, "norm/sum_of_squares@prefetch_on");
  EXPECT_EQ(pair[0].prefetch, true);
  EXPECT_EQ(pair[1].name, "norm/sum_of_squares@prefetch_off");
  EXPECT_EQ(pair[1].prefetch, false);
  for (const Row& row : pair) EXPECT_EQ(row.stem(), norm->name);
  const std::array<const Row*, 2> rows_of_pair = {&pair[0], &pair[1]};
  ASSERT_EQ(in_groups(rows_of_pair).size(), 1u);
  const auto results = measure(rows_of_pair, {.elements = 1000, .rounds = 1});
  EXPECT_TRUE(results.at(0).of_read_limit && results.at(1).of_read_limit);
}

// What the kernels do while a row runs, not what its name says.
TEST(Measure, RunsEveryRowWithItsOwnPrefetch) {
  const bool chosen = kernels::prefetches();
  std::vector<bool> seen;
  Row row{.name = "family/what@prefetch_on",
          .bytes_per_element = 12,
          .prepare =
              [&](std::size_t, ThreadPool&) {
                return Variant{[&] { seen.push_back(kernels::prefetches()); }};
              },
          .prefetch = true};
  Row other = row;
  other.name = "family/what@prefetch_off";
  other.prefetch = false;
  const std::array<const Row*, 2> pair = {&row, &other};
  const auto results = measure(pair, {.elements = 100, .rounds = 2});
  EXPECT_EQ(kernels::prefetches(), chosen) << "afterwards";
  // Rounds begin with another variant each, and the limit is the third.
  EXPECT_EQ(seen, (std::vector<bool>{true, false, true, false, false, true}));
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].name, row.name);
  EXPECT_TRUE(results[0].prefetch);
  EXPECT_FALSE(results[1].prefetch);
  ASSERT_TRUE(results[0].of_other_prefetch && results[1].of_other_prefetch);

  row.prefetch.reset();
  seen.clear();
  const std::array<const Row*, 1> alone = {&row};
  const Result result = measure(alone, {.elements = 100, .rounds = 1}).at(0);
  EXPECT_EQ(seen, std::vector<bool>(2, chosen));
  EXPECT_EQ(result.prefetch, chosen);
  EXPECT_FALSE(result.of_other_prefetch);
}

TEST(EchoTransport, AnswersEveryPeerWithItsOwnMessage) {
  comm::Communicator comm(std::make_unique<EchoTransport>(3));
  const std::vector<std::int32_t> input = {1, 2, 3, 4, 5, 6};
  std::vector<std::int32_t> output(6);
  comm.all_to_all(input, output);
  EXPECT_EQ(output, input);
  comm.barrier();
  test::expect_error(ErrorCode::kUnavailable, {"echo"},
                     [&] { (void)comm.split(0); });
}

TEST(ExchangeRows, CountTheBytesOfTheirAlgorithm) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    constexpr std::size_t kElements = 1 << 16;
    for (const ExchangeRow& row : exchange_rows()) {
      const Result result =
          measure(comm, row, {.elements = kElements, .rounds = 3});
      ASSERT_TRUE(result.wire.has_value());
      EXPECT_EQ(result.wire->ranks, 2);
      EXPECT_GT(result.wire->limit_ratio, 0);
      // 2 (W-1)/W * 4 n; or n / 8, a scale per 1024, and 8 for the norm.
      const std::uint64_t want = row.name == "exchange/all_reduce_fp32"
                                     ? 4 * kElements
                                     : kElements / 8 + kElements / 1024 * 4 + 8;
      EXPECT_EQ(result.wire->bytes_sent, want) << row.name;
    }
  });
}

TEST(Printer, WritesOneObjectPerLine) {
  std::ostringstream out;
  Printer printer(out, true, 20, {"AMD EPYC", "auto: off (AMD family 25)"});
  const Result plain{.name = "family/what",
                     .elements = 1000,
                     .threads = 2,
                     .seconds = 2e-6,
                     .bytes_per_element = 12,
                     .limit = "a += b",
                     .of_limit = 0.5};
  printer.print(plain);
  Result second = plain;
  second.prefetch = true;
  second.of_other_prefetch = 1.25;
  second.wire = Result::Wire{.ranks = 4, .bytes_sent = 77, .limit_ratio = 1.5};
  printer.print(second);

  std::istringstream lines(out.str());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first.at("name"), "family/what");
  EXPECT_EQ(first.at("elements"), 1000);
  EXPECT_EQ(first.at("threads"), 2);
  EXPECT_DOUBLE_EQ(first.at("ns_per_element").get<double>(), 2);
  EXPECT_EQ(first.at("bytes_per_element"), 12);
  EXPECT_EQ(first.at("of_limit"), 0.5);
  EXPECT_EQ(first.at("processor"), "AMD EPYC");
  EXPECT_EQ(first.at("prefetch"), "off");
  EXPECT_FALSE(first.contains("of_other_prefetch"));
  EXPECT_FALSE(first.contains("bytes_sent"));
  ASSERT_TRUE(std::getline(lines, line));
  const auto wire = nlohmann::json::parse(line);
  EXPECT_EQ(wire.at("prefetch"), "on");
  EXPECT_EQ(wire.at("of_other_prefetch"), 1.25);
  EXPECT_EQ(wire.at("bytes_sent"), 77);
  EXPECT_EQ(wire.at("wire_limit_ratio"), 1.5);
  EXPECT_FALSE(std::getline(lines, line));
}

}  // namespace
}  // namespace thinwire::apps::bench::bench_test
