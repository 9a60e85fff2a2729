// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_rank_mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "exchange/naive_low_rank.h"
#include "exchange/support.h"
#include "support/errors.h"
#include "support/hosts.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::low_rank_mean_test {
namespace {

using Values = std::vector<float>;
using Parts = std::vector<std::vector<std::size_t>>;

// Matrices with factors of 4, 3 (all its columns do not pay) and fewer columns,
// vectors, and some for which factors do not pay.
const std::vector<MatrixShape> kShapes = {
    {33, 47}, {7},       {0},      {64, 31}, {31, 5},
    {1025},   {130, 96}, {9, 300}, {4097},   {40, 65}};
constexpr double kLossScale = 512;
const LowRankMeanOptions kOptions{.low_rank = 4, .first_steps = 2};

const std::vector<Parts> kPasses = {
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    {{9, 8, 7}, {6, 5, 4, 3}, {2, 1, 0}},
    {{9}, {8}, {7}, {6}, {5}, {4}, {3}, {2}, {1}, {0}},
    {{9, 8, 7}, {6, 5, 4, 3}, {2, 1, 0}},
    {{6, 0}, {3, 9}, {7, 1, 2}, {4, 8}, {5}}};

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (const MatrixShape& shape : kShapes) all.push_back(shape.size());
  return all;
}

const std::vector<Range> kUnits = test::units_of(sizes());
const std::size_t kElements = kUnits.back().end();

Values gradient(int rank, std::size_t pass) {
  return test::layered_values(kElements, static_cast<std::uint32_t>(10 * pass) +
                                             static_cast<std::uint32_t>(rank));
}

Values gathered(const Values& all, const std::vector<std::size_t>& units) {
  Values part;
  for (const std::size_t unit : units)
    part.insert(part.end(),
                all.begin() + static_cast<std::ptrdiff_t>(kUnits[unit].offset),
                all.begin() + static_cast<std::ptrdiff_t>(kUnits[unit].end()));
  return part;
}

// Returns the number of the cut at element i of a unit, among those of all.
std::size_t cut_at(std::size_t unit, std::size_t i) {
  std::size_t number = i / 1024;
  for (std::size_t before = 0; before < unit; ++before)
    number += (kUnits[before].size + 1023) / 1024;
  return number;
}

std::vector<bool> averaged_at_once(LowRankMean& mean,
                                   std::vector<Values>& parts,
                                   const Parts& units) {
  std::vector<bool> finite;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const auto completed = mean.begin({parts[p], units[p], kLossScale});
    finite.insert(finite.end(), completed.begin(), completed.end());
    EXPECT_EQ(finite.size(), p < 4 ? finite.size() : finite.size());
  }
  const auto completed = mean.finish();
  finite.insert(finite.end(), completed.begin(), completed.end());
  return finite;
}

class LowRank : public ::testing::TestWithParam<int> {
 protected:
  const int world = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Worlds, LowRank, ::testing::Values(2, 3, 4, 8));

TEST_P(LowRank, IsThatOfPlainLoopsHoweverPartsAreCut) {
  const auto ranks = static_cast<std::size_t>(world);
  std::vector<std::vector<Values>> want(kPasses.size());  // [pass][rank]
  test::NaiveLowRank naive(kShapes, kOptions, ranks);
  for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
    for (int r = 0; r < world; ++r) want[pass].push_back(gradient(r, pass));
    naive.average(want[pass], kLossScale, [&](std::size_t unit, std::size_t i) {
      return cut_at(unit, i) % ranks;
    });
  }
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool one(1);
    ThreadPool three(3);
    LowRankMean mean(comm, one, kShapes, kOptions);
    LowRankMean at_once(comm, three, kShapes, kOptions);
    const auto rank = static_cast<std::size_t>(comm.rank());
    for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
      const Values own = gradient(comm.rank(), pass);
      std::vector<Values> parts;
      for (const auto& units : kPasses[pass]) {
        Values part = gathered(own, units);
        parts.push_back(part);
        EXPECT_TRUE(mean.average({part, units, kLossScale}));
        EXPECT_EQ(part, gathered(want[pass][rank], units)) << pass;
      }
      EXPECT_EQ(averaged_at_once(at_once, parts, kPasses[pass]),
                std::vector<bool>(parts.size(), true));
      for (std::size_t p = 0; p < parts.size(); ++p)
        EXPECT_EQ(parts[p], gathered(want[pass][rank], kPasses[pass][p]));
    }
    for (LowRankMean* const each : {&mean, &at_once}) {
      EXPECT_EQ(test::floats_of(each->worker_error()), naive.e[rank]);
      EXPECT_EQ(test::floats_of(each->factors()), naive.factors());
      Buffer servers = each->server_error();
      comm.all_reduce(servers.view());
      EXPECT_EQ(test::floats_of(servers.view()), naive.d);
      EXPECT_EQ(each->passes(), kOptions.first_steps);
    }
  });
}

}  // namespace
}  // namespace thinwire::exchange::low_rank_mean_test
