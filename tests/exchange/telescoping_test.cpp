// SPDX-License-Identifier: Apache-2.0
// Nothing is ever lost: whatever rounding takes away is in a residual.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <vector>

#include "exchange/support.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::telescoping_test {
namespace {

struct Case {
  int world;
  std::vector<Range> units;
  CompressedAllReduceOptions options;
  std::size_t steps;
  std::uint32_t seed;
};

// Per element: the sum of all results, of all averaged inputs, what is left in
// the residuals at the end, and the largest value that was ever added.
struct Sums {
  std::vector<double> results, inputs, left, largest;
};

std::vector<float> input(const Case& c, std::size_t step, int rank) {
  const std::size_t n = c.units.empty() ? 0 : c.units.back().end();
  return test::layered_values(n, c.seed +
                                     static_cast<std::uint32_t>(step * 100) +
                                     static_cast<std::uint32_t>(rank));
}

Sums run(const Case& c) {
  const std::size_t n = c.units.empty() ? 0 : c.units.back().end();
  Sums sums{std::vector<double>(n), std::vector<double>(n),
            std::vector<double>(n), std::vector<double>(n)};
  std::vector<std::vector<float>> worker(static_cast<std::size_t>(c.world));
  std::vector<std::vector<float>> server(worker.size());
  BlockLayout layout;
  comm::run_local_ranks(c.world, [&](comm::Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    test::Exchange exchange(comm, c.units, c.options);
    for (std::size_t step = 0; step < c.steps; ++step) {
      std::vector<float> values = input(c, step, comm.rank());
      exchange.all.all_reduce(values);
      if (rank != 0) continue;
      for (std::size_t i = 0; i < n; ++i) {
        sums.results[i] += values[i];
        sums.largest[i] =
            std::max(sums.largest[i], std::abs(static_cast<double>(values[i])));
      }
    }
    worker[rank] = test::floats_of(exchange.all.worker_error());
    server[rank] = test::floats_of(exchange.all.server_error());
    if (rank == 0) layout = exchange.all.layout();
  });

  for (std::size_t step = 0; step < c.steps; ++step)
    for (int r = 0; r < c.world; ++r) {
      const std::vector<float> x = input(c, step, r);
      for (std::size_t i = 0; i < n; ++i)
        sums.inputs[i] += static_cast<double>(x[i]) / c.world;
    }
  std::vector<std::size_t> at(worker.size());
  for (const Block& block : layout.blocks()) {
    const auto s = static_cast<std::size_t>(block.server);
    for (std::size_t i = 0; i < block.values.size; ++i) {
      const std::size_t element = block.values.offset + i;
      for (const std::vector<float>& e : worker)
        sums.left[element] +=
            static_cast<double>(e[block.residual.offset + i]) / c.world;
      sums.left[element] += server[s][at[s] + i];
    }
    at[s] += block.residual.size;
  }
  return sums;
}

// Each step rounds c = x + e, s q, e = c - s q, the mean's W products and W
// additions and c = a + d, s q, d = c - s q: no more than 2 W + 6 roundings of
// values that are no larger than a few residuals, each off by at most 2^-24 of
// its value. Residuals stay within about (steps + 1) times the largest input or
// result.
double bound(const Case& c, double largest) {
  const auto steps = static_cast<double>(c.steps);
  return steps * (2.0 * c.world + 6) * std::ldexp((steps + 1) * largest, -23);
}

Case draw() {
  const auto sizes = *rc::gen::container<std::vector<std::size_t>>(
      rc::gen::inRange<std::size_t>(0, 2100));
  Case c{.world = *rc::gen::inRange(2, 5),
         .units = test::units_of(sizes),
         .options = {},
         .steps = *rc::gen::inRange<std::size_t>(1, 6),
         .seed = *rc::gen::arbitrary<std::uint32_t>()};
  c.options.blocks.bucket_elements = *rc::gen::inRange<std::size_t>(1, 3000);
  return c;
}

void expect_nothing_lost(const Case& c) {
  const Sums sums = run(c);
  double largest = 6;  // of the normal inputs
  for (const double value : sums.largest) largest = std::max(largest, value);
  for (std::size_t i = 0; i < sums.results.size(); ++i) {
    const double lost = sums.inputs[i] - sums.left[i] - sums.results[i];
    RC_ASSERT(std::abs(lost) <= bound(c, largest));
  }
}

TEST(CompressedAllReduce, LosesNothingOverAnyNumberOfSteps) {
  EXPECT_TRUE(rc::check([] { expect_nothing_lost(draw()); }));
}

}  // namespace
}  // namespace thinwire::exchange::telescoping_test
