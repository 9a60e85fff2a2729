// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
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
#include "apps/thinwire/bench/exchange_rows.h"
#include "apps/thinwire/bench/interleave.h"
#include "apps/thinwire/bench/limits.h"
#include "apps/thinwire/bench/result.h"
#include "apps/thinwire/bench/rows.h"
#include "support/errors.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/local.h"

namespace thinwire::apps::bench {
namespace {

TEST(Interleave, BeginsEveryRoundWithAnotherVariant) {
  std::string order;
  const std::array<Variant, 3> variants = {
      Variant{[&] { order += 'a'; }}, Variant{[&] { order += 'b'; }},
      Variant{[&] { order += 'c'; }, [&] { order += '_'; }}};
  const Interleaved result = interleave(variants, 4);
  EXPECT_EQ(order,
            "ab_c"
            "ab_c"
            "b_ca"
            "_cab"
            "ab_c");
  ASSERT_EQ(result.seconds.size(), 3u);
  for (const auto& rounds : result.seconds) EXPECT_EQ(rounds.size(), 4u);
  EXPECT_LE(result.busy_rounds, 4);
}

TEST(Median, IsTheMiddleOrBetweenTheTwo) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(MedianRatio, ComparesTimesOfOneRoundOnly) {
  // The second round was ten times slower for both.
  const std::vector<double> a = {2, 20, 2}, b = {1, 10, 1};
  EXPECT_EQ(median_ratio(a, b), 2);
}

TEST(RandomValues, AreInsideOneAndNeverZero) {
  const Buffer buffer = random_values(4097, 7);
  double sum = 0;
  for (const float value : buffer.as<float>()) {
    ASSERT_NE(value, 0.0f);
    ASSERT_LT(std::abs(value), 1.0f);
    sum += value;
  }
  // The mean of 4097 uniform values: standard deviation 0.009.
  EXPECT_NEAR(sum / 4097, 0, 0.05);
}

TEST(Limits, GoOverEveryElementOnce) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    Limits limits(4097, pool);
    for (const Limit limit : {Limit::kAdd, Limit::kAdamStreams, Limit::kRead})
      limits.run(limit);
  }
}

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

TEST(Rows, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Row& row : rows()) EXPECT_TRUE(names.insert(row.name).second);
  for (const ExchangeRow& row : exchange_rows())
    EXPECT_TRUE(names.insert(row.name).second);
}

// 4 for finiteness and norm, 26.5 for the rest: one pass more would show.
TEST(Rows, CountThirtyAndAHalfBytesForACompressedStep) {
  for (const Row& row : rows())
    if (row.name == "onebit_adam/compressed_step@w4") {
      EXPECT_NEAR(row.bytes_per_element, 30.5, 0.05);
      return;
    }
  FAIL() << "no such row";
}

TEST(EchoTransport, AnswersEveryPeerWithItsOwnMessage) {
  comm::Communicator comm(std::make_unique<EchoTransport>(3));
  const std::vector<std::int32_t> input = {1, 2, 3, 4, 5, 6};
  std::vector<std::int32_t> output(6);
  comm.all_to_all(input, output);
  EXPECT_EQ(output, input);
  comm.barrier();
  test::expect_error(ErrorCode::kCommFailure, {"echo"},
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

TEST(ExchangeRows, CompareWithALinkThatIsGiven) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const Result result =
        measure(comm, exchange_rows()[0],
                {.elements = 1 << 10, .rounds = 1, .link_gbps = 1});
    // 4096 bytes at 1 Gbit/s take 32.8 us.
    EXPECT_NEAR(result.of_limit * result.seconds, 4096 * 8e-9, 1e-12);
    EXPECT_EQ(result.limit, "link");
  });
}

Result a_result() {
  return {.name = "family/what",
          .elements = 1000,
          .threads = 2,
          .seconds = 2e-6,
          .bytes_per_element = 12,
          .limit = "a += b",
          .of_limit = 0.5};
}

TEST(Printer, WritesOneObjectPerLine) {
  std::ostringstream out;
  Printer printer(out, true, 20);
  printer.print(a_result());
  Result second = a_result();
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
  EXPECT_FALSE(first.contains("bytes_sent"));
  ASSERT_TRUE(std::getline(lines, line));
  const auto wire = nlohmann::json::parse(line);
  EXPECT_EQ(wire.at("bytes_sent"), 77);
  EXPECT_EQ(wire.at("wire_limit_ratio"), 1.5);
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(Printer, AlignsATableUnderOneHeader) {
  std::ostringstream out;
  Printer printer(out, false, 20);
  printer.print(a_result());
  printer.print(a_result());
  std::istringstream lines(out.str());
  std::string header, first, second, rest;
  std::getline(lines, header);
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, rest));
  EXPECT_EQ(first, second);
  EXPECT_EQ(header.find("limit", header.find("of_limit") + 8),
            first.find("a += b"));
  EXPECT_NE(first.find("6.00"), std::string::npos) << "12 bytes in 2 ns";
}

}  // namespace
}  // namespace thinwire::apps::bench
