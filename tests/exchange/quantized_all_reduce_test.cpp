// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/quantized_all_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "exchange/support.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::quantized_all_reduce_test {
namespace {

using test::QuantizedExchange;

std::size_t total(const std::vector<Range>& units) {
  return units.back().end();
}

QuantizedAllReduceOptions with_bits(int bits,
                                    std::size_t bucket_elements = 1500) {
  return {.blocks = {.bucket_elements = bucket_elements, .bits = bits}};
}

// (ranks, bits)
class Quantized : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const int world = std::get<0>(GetParam());
  const int bits = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, Quantized,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8),
                                            ::testing::Values(4, 8)));

TEST_P(Quantized, EveryRankGetsTheSameBitsWhateverTheBucketsAndThreads) {
  const std::vector<Range> units = test::awkward_units();
  const auto results = [&](std::size_t bucket, int threads) {
    return test::all_reduced<QuantizedExchange>(
        world, units, with_bits(bits, bucket), threads);
  };
  const auto want = results(std::size_t{1} << 20, 1);
  for (const auto& result : want) EXPECT_EQ(result, want[0]);
  for (const std::size_t bucket : {1, 1000, 5000})
    EXPECT_EQ(results(bucket, 1), want) << bucket;
  EXPECT_EQ(results(1500, 3), want);
}

// The first call has no residuals yet. Each side rounds to the nearest of
// 2 L + 1 values, so is off by half a step at most; a step is the largest
// magnitude over L, and the mean's largest is at most half a step above that of
// the inputs.
TEST_P(Quantized, TheFirstResultIsOffByOneStepAtMost) {
  const std::vector<Range> units = test::awkward_units();
  const std::size_t n = total(units);
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < world; ++r)
    inputs.push_back(test::layered_values(n, static_cast<std::uint32_t>(r)));
  const auto results = test::all_reduced<QuantizedExchange>(
      world, units, with_bits(bits), /*threads=*/1, /*steps=*/1);
  const double levels = (1 << (bits - 1)) - 1;
  const BlockLayout layout(units, {.world_size = world, .bits = bits});
  for (const Block& block : layout.blocks()) {
    double largest = 0;
    for (const auto& x : inputs)
      for (std::size_t i = block.values.offset; i < block.values.end(); ++i)
        largest = std::max(largest, double{std::abs(x[i])});
    const double step = largest / levels;
    const double most = step / 2 + step / 2 * (1 + 0.5 / levels) + 1e-5 * step;
    for (std::size_t i = block.values.offset; i < block.values.end(); ++i) {
      double mean = 0;
      for (const auto& x : inputs) mean += double{x[i]} / world;
      ASSERT_NEAR(results[0][i], mean, most) << i;
    }
  }
}

TEST_P(Quantized, MultiplesOfTheStepComeBackExactlyAndZerosAsZeros) {
  const std::vector<Range> units = {{0, 1500}};
  const int levels = (1 << (bits - 1)) - 1;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    QuantizedExchange exchange(comm, units, with_bits(bits));
    std::vector<float> values(1500);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 0.25f * static_cast<float>(
                              static_cast<int>(i) % (2 * levels + 1) - levels);
    const std::vector<float> want = values;
    EXPECT_EQ(exchange.all.all_reduce(values), -1);
    // Exact but for the mean: W additions of terms with a rounded 1/W.
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float most =
          std::ldexp(want[i], -22) * static_cast<float>(comm.size() + 2);
      ASSERT_NEAR(values[i], want[i], std::abs(most)) << i;
    }
  });
}

// The transport's own count against the formula of docs/algorithms.md.
TEST_P(Quantized, SendsWhatTheFormulaSays) {
  const std::vector<Range> units = {{0, 100'000}, {100'000, 333}};
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    auto options = with_bits(bits, 30'000);
    options.checks_finite = false;
    QuantizedExchange exchange(comm, units, options);
    std::vector<float> values(total(units), 1.0f);
    const comm::Counters before = comm.counters();
    exchange.all.all_reduce(values);
    const comm::Counters after = comm.counters();

    const auto others = static_cast<std::size_t>(world - 1);
    std::uint64_t want = 0;
    const BlockLayout& layout = exchange.all.layout();
    for (const Block& block : layout.blocks()) {
      const std::size_t bits_of_words =
          (block.values.size * static_cast<std::size_t>(bits) + 31) / 32;
      const std::size_t record = 4 + 4 * bits_of_words;
      want += block.server == comm.rank() ? record * others : record;
    }
    if (world == 1) want = 0;
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, want);
    EXPECT_EQ(after.collectives - before.collectives,
              world == 1 ? 0 : 2 * layout.buckets().size());
  });
}

TEST_P(Quantized, WorksForAnyFewElements) {
  for (const std::size_t n : {0, 1, 3, 7, 31, 32, 33}) {
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      QuantizedExchange exchange(comm, {{0, n}}, with_bits(bits));
      std::vector<float> values(n, -2.0f);
      EXPECT_EQ(exchange.all.all_reduce(values), -1);
      for (const float value : values) EXPECT_FLOAT_EQ(value, -2.0f);
    });
  }
}

TEST(QuantizedAllReduce, LeavesTheValuesOfAGroupOfOneAlone) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    QuantizedExchange exchange(comm, test::awkward_units());
    std::vector<float> values =
        test::layered_values(total(test::awkward_units()), 1);
    const std::vector<float> want = values;
    EXPECT_EQ(exchange.all.all_reduce(values), -1);
    EXPECT_EQ(values, want);
    EXPECT_EQ(comm.counters().bytes_sent, 0u);
  });
}

}  // namespace
}  // namespace thinwire::exchange::quantized_all_reduce_test
