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

// Averages parts of which five are in flight at a time, and returns which are
// finite.
std::vector<bool> averaged_at_once(LowRankMean& mean,
                                   std::vector<Values>& parts,
                                   const Parts& units) {
  std::vector<bool> finite;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const auto completed = mean.begin({parts[p], units[p], kLossScale});
    finite.insert(finite.end(), completed.begin(), completed.end());
    EXPECT_GT(mean.worker_error().size(), 0u);  // may be read at any time
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

TEST_P(LowRank, EqualsPlainLoopsForAnyParts) {
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
      EXPECT_EQ(test::floats_of(each->worker_error().view()), naive.e[rank]);
      EXPECT_EQ(test::floats_of(each->factors()), naive.factors());
      Buffer servers = each->server_error();
      comm.all_reduce(servers.view());
      EXPECT_EQ(test::floats_of(servers.view()), naive.d);
      EXPECT_EQ(each->passes(), kOptions.first_steps);
    }
  });
}

// Units of a pass, in one part.
std::vector<std::size_t> all_units() {
  std::vector<std::size_t> units(kShapes.size());
  std::iota(units.begin(), units.end(), std::size_t{0});
  return units;
}

bool average(LowRankMean& mean, Values& values, double loss_scale = 1) {
  return mean.average({values, all_units(), loss_scale});
}

// (hosts, ranks of each): as the hosts alone with the means of their ranks, of
// two, so that no mean is rounded.
TEST(LowRankByHost, EqualsThatOfTheHosts) {
  for (const int hosts : {2, 3}) {
    const auto workers = static_cast<std::size_t>(hosts);
    test::NaiveLowRank naive(kShapes, kOptions, workers);
    std::vector<std::vector<Values>> want;
    // Which host serves a cut of the first passes decides who gets its
    // residual.
    std::vector<Values> served(workers);
    for (std::size_t pass = 0; pass < 4; ++pass) {
      want.emplace_back();
      for (int host = 0; host < hosts; ++host) {
        Values mean = gradient(2 * host, pass);
        const Values other = gradient(2 * host + 1, pass);
        for (std::size_t i = 0; i < mean.size(); ++i)
          mean[i] = (mean[i] + other[i]) / 2;
        want.back().push_back(mean);
      }
      naive.average(want.back(), kLossScale,
                    [&](std::size_t unit, std::size_t i) {
                      return cut_at(unit, i) % workers;
                    });
    }
    comm::run_local_ranks(2 * hosts, [&](comm::Communicator& comm) {
      ThreadPool pool(2);
      const comm::HostGroups groups = test::split_into_hosts(comm, 2);
      LowRankMean mean(comm, pool, kShapes, kOptions, &groups);
      const auto host = static_cast<std::size_t>(comm.rank()) / 2;
      for (std::size_t pass = 0; pass < 4; ++pass) {
        const Values own = gradient(comm.rank(), pass);
        std::vector<Values> parts;
        const Parts& units = kPasses[pass == 0 ? 0 : 2];
        for (const auto& of : units) parts.push_back(gathered(own, of));
        EXPECT_EQ(averaged_at_once(mean, parts, units),
                  std::vector<bool>(parts.size(), true));
        for (std::size_t p = 0; p < parts.size(); ++p)
          EXPECT_EQ(parts[p], gathered(want[pass][host], units[p])) << pass;
      }
      // Each of the host's ranks has a part of its residual.
      Values own = test::floats_of(mean.worker_error().view());
      groups.inside->all_reduce(own);
      EXPECT_EQ(own, naive.e[host]);
      EXPECT_EQ(test::floats_of(mean.factors()), naive.factors());
    });
  }
}

TEST_P(LowRank, ResultsAndMeanResidualAddUpToTheMeanGradient) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowRankMean mean(comm, pool, kShapes, kOptions);
    std::vector<double> sums(kElements);
    for (std::size_t pass = 0; pass < 6; ++pass) {
      Values values = gradient(comm.rank(), pass);
      for (std::size_t i = 0; i < kElements; ++i) sums[i] += values[i];
      EXPECT_TRUE(average(mean, values));
      for (std::size_t i = 0; i < kElements; ++i) sums[i] -= values[i];
    }
    // This rank's gradients less results are its residual, and W times the
    // servers' one, in the mean over ranks.
    const Values e = test::floats_of(mean.worker_error().view());
    const Values d = test::floats_of(mean.server_error().view());
    Values left(kElements);
    for (std::size_t i = 0; i < kElements; ++i)
      left[i] = static_cast<float>(sums[i] - e[i] -
                                   comm.size() * static_cast<double>(d[i]));
    comm.all_reduce(left);
    for (const float value : left) ASSERT_NEAR(value, 0, 1e-4);
  });
}

TEST_P(LowRank, IsNaNOnAllRanksIfNotFiniteAndChangesNothing) {
  for (const std::int64_t first_steps : {0, 20})
    for (const std::size_t unit : {0u, 5u, 9u})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        ThreadPool pool(1);
        LowRankMean mean(comm, pool, kShapes,
                         {.low_rank = 4, .first_steps = first_steps});
        Values values = gradient(comm.rank(), 0);
        EXPECT_TRUE(average(mean, values));
        const Values worker = test::floats_of(mean.worker_error().view());
        const Values server = test::floats_of(mean.server_error().view());
        const Values factors = test::floats_of(mean.factors());
        values = gradient(comm.rank(), 1);
        if (comm.rank() == comm.size() - 1)
          values[kUnits[unit].offset + 30] =
              unit == 5 ? std::numeric_limits<float>::quiet_NaN()
                        : -std::numeric_limits<float>::infinity();
        EXPECT_FALSE(average(mean, values));
        for (const float value : values) EXPECT_TRUE(std::isnan(value));
        EXPECT_EQ(test::floats_of(mean.worker_error().view()), worker);
        EXPECT_EQ(test::floats_of(mean.server_error().view()), server);
        EXPECT_EQ(test::floats_of(mean.factors()), factors);
        EXPECT_EQ(mean.passes(), first_steps == 0 ? 0 : 1);
      });
}

// Of columns of equal values, whose products with Q partly cancel: only those
// with P overflow.
TEST(LowRankParts, AnAverageThatOverflowsInItsSecondExchangeIsRejected) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<MatrixShape> shapes = {{400, 64}};
    const std::vector<std::size_t> units = {0};
    LowRankMean mean(comm, pool, shapes, {.low_rank = 1, .first_steps = 0});
    Values values(400 * 64, 3e37f);
    EXPECT_FALSE(mean.average({values, units}));
    for (const float value : values) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(test::floats_of(mean.worker_error().view()),
              Values(values.size()));
    values.assign(values.size(), 1.0f);
    EXPECT_TRUE(mean.average({values, units}));
    for (const float value : values) EXPECT_NEAR(value, 1, 0.05);
  });
}

TEST_P(LowRank, RejectsOnlyThePartThatIsNotFinite) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(2);
    const LowRankMeanOptions options{.low_rank = 4, .first_steps = 0};
    LowRankMean mean(comm, pool, kShapes, options);
    LowRankMean without(comm, pool, kShapes, options);
    const Parts units = {{9, 8}, {7, 6}, {5, 4, 3}, {2, 1}, {0}};
    for (std::size_t pass = 0; pass < 3; ++pass) {
      std::vector<Values> parts;
      for (const auto& part : units)
        parts.push_back(gathered(gradient(comm.rank(), pass), part));
      for (std::size_t p = 0; p < units.size(); ++p) {
        if (p == 1 && pass == 1) continue;
        Values part = parts[p];
        EXPECT_TRUE(without.average({part, units[p], kLossScale}));
      }
      if (pass == 1 && comm.rank() == 0)
        parts[1][5000] = std::numeric_limits<float>::infinity();
      EXPECT_EQ(averaged_at_once(mean, parts, units),
                (std::vector<bool>{true, pass != 1, true, true, true}));
      EXPECT_EQ(test::floats_of(mean.worker_error().view()),
                test::floats_of(without.worker_error().view()));
      EXPECT_EQ(test::floats_of(mean.factors()),
                test::floats_of(without.factors()));
    }
  });
}

// The gradients of a layer that begins with zeros, and of one with one row.
TEST_P(LowRank, GradientsOfZeroDrawNewFactors) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<MatrixShape> shapes = {{40, 50}};
    const std::vector<std::size_t> units = {0};
    LowRankMean mean(comm, pool, shapes, {.low_rank = 3, .first_steps = 0});
    Values values(2000);
    const Values first = test::floats_of(mean.factors());
    EXPECT_TRUE(mean.average({values, units}));
    EXPECT_EQ(values, Values(2000));
    EXPECT_NE(test::floats_of(mean.factors()), first);
    for (int pass = 0; pass < 12; ++pass) {
      values.assign(2000, 0);
      for (std::size_t j = 0; j < 50; ++j) values[7 * 50 + j] = 2;
      EXPECT_TRUE(mean.average({values, units}));
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], i / 50 == 7 ? 2 : 0, 0.1) << i;
  });
}

// Gradients of one row in fp16 and bf16 come out rounded once.
template <class T, class Convert>
void expect_of_type(Convert&& convert, DType dtype) {
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    ThreadPool pool(2);
    LowRankMean mean(comm, pool, kShapes, kOptions);
    LowRankMean of_floats(comm, pool, kShapes, kOptions);
    for (std::size_t pass = 0; pass < 4; ++pass) {
      std::vector<T> values;
      Values floats;
      for (const float value : gradient(comm.rank(), pass)) {
        values.push_back(convert(value));
        floats.push_back(to_float(values.back()));
      }
      const View view(values.data(), values.size(), dtype);
      EXPECT_TRUE(mean.average({view, all_units(), 4}));
      EXPECT_TRUE(average(of_floats, floats, 4));
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(to_float(values[i]), to_float(convert(floats[i]))) << i;
    }
    EXPECT_EQ(test::floats_of(mean.worker_error().view()),
              test::floats_of(of_floats.worker_error().view()));
  });
}

TEST(LowRankParts, AcceptGradientsOf16Bits) {
  expect_of_type<Half>([](float x) { return to_half(x); }, DType::kFloat16);
  expect_of_type<BFloat16>([](float x) { return to_bfloat16(x); },
                           DType::kBFloat16);
}

TEST_P(LowRank, ContinuesWithTheSameBitsFromEveryPass) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowRankMean mean(comm, pool, kShapes, kOptions);
    for (std::size_t pass = 0; pass < 4; ++pass) {
      LowRankMean loaded(comm, pool, kShapes, kOptions);
      const Buffer server = mean.server_error();
      loaded.load({.worker = mean.worker_error().view(),
                   .server = server.view(),
                   .factors = mean.factors(),
                   .generators = mean.generators(),
                   .passes = mean.passes()});
      for (std::size_t next = pass; next < 4; ++next) {
        Values values = gradient(comm.rank(), next);
        EXPECT_TRUE(average(loaded, values));
        if (next > pass) continue;
        Values want = gradient(comm.rank(), pass);
        EXPECT_TRUE(average(mean, want));
        EXPECT_EQ(values, want) << pass;
      }
    }
  });
}

TEST_P(LowRank, SendsTheBytesThatItAnnounces) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowRankMean mean(comm, pool, kShapes, kOptions);
    for (std::size_t pass = 0; pass < 4; ++pass) {
      Values all = gradient(comm.rank(), pass);
      const std::uint64_t before = comm.counters().bytes_sent;
      const std::size_t announced = mean.bytes_per_pass();
      EXPECT_TRUE(average(mean, all));
      EXPECT_EQ(comm.counters().bytes_sent - before, announced) << pass;
    }
  });
}

TEST(LowRankParts, OfOneRankAreItsGradients) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowRankMean mean(comm, pool, kShapes, {});
    Values values = gradient(0, 0);
    EXPECT_TRUE(average(mean, values));
    EXPECT_EQ(values, gradient(0, 0));
    EXPECT_EQ(mean.bytes_per_pass(), 0u);
  });
}

TEST(LowRankParts, AreCheckedLikeThoseOfLowBitMean) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowRankMean mean(comm, pool, kShapes, {});
    Values values(7);
    const std::vector<std::size_t> units = {1};
    test::expect_invalid({"Part.units"}, [&] {
      static_cast<void>(mean.begin({values, std::vector<std::size_t>{10}}));
    });
    test::expect_invalid({"Part.values"}, [&] {
      static_cast<void>(mean.begin({values, std::vector<std::size_t>{0}}));
    });
    EXPECT_TRUE(mean.begin({values, units}).empty());
    test::expect_invalid({"Part.units"}, [&] {
      static_cast<void>(mean.begin({values, units}));
    });
    test::expect_error(ErrorCode::kFailedPrecondition, {"load()"},
                       [&] { mean.load({}); });
    EXPECT_EQ(mean.finish(), std::vector<bool>{true});
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"factors"},
                       [&] { mean.load({}); });
    const auto refused = [&](const char* name, LowRankMeanOptions options) {
      test::expect_invalid({name}, [&] {
        const LowRankMean other(comm, pool, kShapes, options);
      });
    };
    refused("low_rank must be in [1, 64]", {.low_rank = 0});
    refused("low_rank must be in [1, 64]", {.low_rank = 65});
    refused("first_steps must be >= 0", {.first_steps = -1});
    refused("first_bits must be 4 or 8", {.first_bits = 2});
  });
}

TEST(MatrixShape, HasFactorsIfTheySaveHalf) {
  EXPECT_EQ((MatrixShape{256, 256}.rank(8)), 8u);
  EXPECT_EQ((MatrixShape{256, 256}.rank(64)), 0u);
  EXPECT_EQ((MatrixShape{1024, 1}.rank(1)), 0u);
  EXPECT_EQ((MatrixShape{0, 7}.rank(1)), 0u);
  EXPECT_EQ((MatrixShape{5, 5}.rank(1)), 1u);  // 2 (5 + 5) < 25
  EXPECT_EQ((MatrixShape{4, 4}.rank(1)), 0u);  // 2 (4 + 4) = 16
}

}  // namespace
}  // namespace thinwire::exchange::low_rank_mean_test
