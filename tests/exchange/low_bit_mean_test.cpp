// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_mean.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "exchange/naive_mean.h"
#include "exchange/support.h"
#include "support/errors.h"
#include "support/hosts.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::low_bit_mean_test {
namespace {

using Values = std::vector<float>;

const std::vector<std::size_t> kSizes = {1, 0, 7, 33, 1024, 1025, 4097, 3};
constexpr std::size_t kElements = 6190;
constexpr double kLossScale = 512;

// The units of each part, of each pass.
using Parts = std::vector<std::vector<std::size_t>>;
const std::vector<Parts> kPasses = {{{0, 1, 2, 3, 4, 5, 6, 7}},
                                    {{7, 6, 5}, {4, 3, 2, 1, 0}},
                                    {{7, 5}, {6}, {0, 2, 4}},
                                    {{7, 5}, {6}, {0, 2, 4, 3}},
                                    {{7}, {6}, {3, 5}, {4}, {1, 2}, {0}}};

Values gradient(int rank, std::size_t pass) {
  return test::layered_values(kElements, static_cast<std::uint32_t>(10 * pass) +
                                             static_cast<std::uint32_t>(rank));
}

// One rank's values of a part, one unit after another, and back.
Values gathered(const Values& all, const std::vector<std::size_t>& units) {
  Values part;
  for (const std::size_t unit : units)
    for (std::size_t i = 0; i < kSizes[unit]; ++i)
      part.push_back(all[test::units_of(kSizes)[unit].offset + i]);
  return part;
}

// Averages parts of which three are in flight at a time, and returns which are
// finite.
std::vector<bool> averaged_at_once(LowBitMean& mean, std::vector<Values>& parts,
                                   const Parts& units) {
  std::vector<bool> finite;
  const auto take = [&](const std::vector<bool>& completed) {
    finite.insert(finite.end(), completed.begin(), completed.end());
  };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    take(mean.begin({parts[p], units[p], kLossScale}));
    EXPECT_EQ(finite.size(), p < 2 ? 0 : p - 1);
  }
  take(mean.finish());
  return finite;
}

// (ranks, bits)
class Mean : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const int world = std::get<0>(GetParam());
  const int bits = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, Mean,
                         ::testing::Combine(::testing::Values(2, 3, 8),
                                            ::testing::Values(4, 8)));

TEST_P(Mean, EqualsPlainLoopsForAnyParts) {
  const auto ranks = static_cast<std::size_t>(world);
  std::vector<std::vector<Values>> want(kPasses.size());  // [pass][rank]
  std::vector<Values> e(ranks, Values(kElements));
  Values d(kElements);
  for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
    for (int r = 0; r < world; ++r) want[pass].push_back(gradient(r, pass));
    for (const auto& units : kPasses[pass])
      for (const std::size_t unit : units)
        test::naive_mean(test::units_of(kSizes)[unit], bits, kLossScale,
                         want[pass], e, d);
  }
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(2);
    LowBitMean mean(comm, pool, kSizes, {.bits = bits});
    LowBitMean at_once(comm, pool, kSizes, {.bits = bits});
    const auto rank = static_cast<std::size_t>(comm.rank());
    for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
      const Values own = gradient(comm.rank(), pass);
      for (const auto& units : kPasses[pass]) {
        Values part = gathered(own, units);
        EXPECT_TRUE(mean.average({part, units, kLossScale}));
        EXPECT_EQ(part, gathered(want[pass][rank], units)) << pass;
      }
      std::vector<Values> parts;
      for (const auto& units : kPasses[pass])
        parts.push_back(gathered(own, units));
      EXPECT_EQ(averaged_at_once(at_once, parts, kPasses[pass]),
                std::vector<bool>(parts.size(), true));
      for (std::size_t p = 0; p < parts.size(); ++p)
        EXPECT_EQ(parts[p], gathered(want[pass][rank], kPasses[pass][p]));
    }
    for (const LowBitMean* const each : {&mean, &at_once}) {
      EXPECT_EQ(test::floats_of(each->worker_error()), e[rank]);
      Buffer servers = each->server_error();
      comm.all_reduce(servers.view());
      EXPECT_EQ(test::floats_of(servers.view()), d);
    }
  });
}

TEST_P(Mean, IsNaNOnAllRanksIfNotFiniteAndChangesNothing) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::infinity()})
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      ThreadPool pool(1);
      LowBitMean mean(comm, pool, kSizes, {.bits = bits});
      const std::vector<std::size_t> units = {5, 0, 6};
      Values part = gathered(gradient(comm.rank(), 0), units);
      EXPECT_TRUE(mean.average({part, units}));
      const Values worker = test::floats_of(mean.worker_error());
      const Values server = test::floats_of(mean.server_error().view());
      part = gathered(gradient(comm.rank(), 1), units);
      if (comm.rank() == comm.size() - 1) part[4000] = bad;
      EXPECT_FALSE(mean.average({part, units}));
      for (const float value : part) EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(test::floats_of(mean.worker_error()), worker);
      EXPECT_EQ(test::floats_of(mean.server_error().view()), server);
    });
}

TEST_P(Mean, IsRejectedOnlyForThePartThatIsNotFinite) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitMean mean(comm, pool, kSizes, {.bits = bits});
    LowBitMean without(comm, pool, kSizes, {.bits = bits});
    const Parts units = {{7}, {6, 5}, {4}, {2, 3}};
    for (std::size_t pass = 0; pass < 2; ++pass) {
      std::vector<Values> parts;
      for (const auto& part : units)
        parts.push_back(gathered(gradient(comm.rank(), pass), part));
      for (std::size_t p = 0; p < units.size(); ++p) {
        if (p == 1 && pass == 0) continue;
        Values part = parts[p];
        EXPECT_TRUE(without.average({part, units[p], kLossScale}));
      }
      if (pass == 0 && comm.rank() == 0)
        parts[1][5000] = std::numeric_limits<float>::infinity();
      EXPECT_EQ(averaged_at_once(mean, parts, units),
                (std::vector<bool>{true, pass != 0, true, true}));
      for (const float value : parts[1])
        EXPECT_EQ(std::isnan(value), pass == 0);
      EXPECT_EQ(test::floats_of(mean.worker_error()),
                test::floats_of(without.worker_error()));
    }
  });
}

// Parts of several buckets, flat and by host.
TEST(MeanOfParts, LargePartsAtOnceHaveTheBitsOfSinglePasses) {
  const std::vector<std::size_t> sizes = {1025, (1u << 20) + 7, 33,
                                          (1u << 20) + 1, 5};
  const Parts units = {{4, 3}, {2}, {1}, {0}};
  for (const int ranks_per_host : {1, 2})
    comm::run_local_ranks(4, [&](comm::Communicator& comm) {
      ThreadPool pool(2);
      const comm::HostGroups groups =
          test::split_into_hosts(comm, ranks_per_host);
      const comm::HostGroups* const hosts =
          ranks_per_host == 1 ? nullptr : &groups;
      LowBitMean one_by_one(comm, pool, sizes, {.bits = 4}, hosts);
      LowBitMean at_once(comm, pool, sizes, {.bits = 4}, hosts);
      for (std::uint32_t pass = 0; pass < 2; ++pass) {
        std::vector<Values> want;
        for (const auto& part : units) {
          std::size_t size = 0;
          for (const std::size_t unit : part) size += sizes[unit];
          want.push_back(test::layered_values(
              size, 4 * pass + static_cast<std::uint32_t>(comm.rank())));
        }
        std::vector<Values> got = want;
        for (std::size_t p = 0; p < units.size(); ++p)
          EXPECT_TRUE(one_by_one.average({want[p], units[p], kLossScale}));
        EXPECT_EQ(averaged_at_once(at_once, got, units),
                  std::vector<bool>(units.size(), true));
        EXPECT_EQ(got, want);
      }
      EXPECT_EQ(test::floats_of(at_once.worker_error()),
                test::floats_of(one_by_one.worker_error()));
      EXPECT_EQ(test::floats_of(at_once.server_error().view()),
                test::floats_of(one_by_one.server_error().view()));
    });
}

// (hosts, ranks of each): as the hosts alone with the means of their ranks, of
// two, so that no mean is rounded.
TEST(MeanOfParts, InHierarchicalGroupsIsThatOfTheHosts) {
  const std::vector<std::size_t> units = {7, 6, 5, 4, 0};
  for (const int hosts : {2, 3}) {
    std::vector<Values> want(static_cast<std::size_t>(hosts));
    std::vector<Values> errors(static_cast<std::size_t>(hosts));
    const auto of_host = [](int host, std::size_t pass) {
      Values mean = gradient(2 * host, pass);
      const Values other = gradient(2 * host + 1, pass);
      for (std::size_t i = 0; i < mean.size(); ++i)
        mean[i] = (mean[i] + other[i]) / 2;
      return mean;
    };
    comm::run_local_ranks(hosts, [&](comm::Communicator& comm) {
      ThreadPool pool(1);
      LowBitMean mean(comm, pool, kSizes, {.bits = 4});
      const auto host = static_cast<std::size_t>(comm.rank());
      for (std::size_t pass = 0; pass < 3; ++pass) {
        want[host] = gathered(of_host(comm.rank(), pass), units);
        EXPECT_TRUE(mean.average({want[host], units}));
      }
      errors[host] = test::floats_of(mean.worker_error());
    });
    comm::run_local_ranks(2 * hosts, [&](comm::Communicator& comm) {
      ThreadPool pool(2);
      const comm::HostGroups groups = test::split_into_hosts(comm, 2);
      LowBitMean mean(comm, pool, kSizes, {.bits = 4}, &groups);
      Values part;
      for (std::size_t pass = 0; pass < 3; ++pass) {
        part = gathered(gradient(comm.rank(), pass), units);
        EXPECT_TRUE(mean.average({part, units}));
      }
      const auto host = static_cast<std::size_t>(comm.rank()) / 2;
      EXPECT_EQ(part, want[host]);
      // Each of the host's ranks has a part of its residual, and keeps it.
      Values own = test::floats_of(mean.worker_error());
      mean.load_errors(errors[host], mean.server_error().view());
      EXPECT_EQ(test::floats_of(mean.worker_error()), own);
      groups.inside->all_reduce(own);
      EXPECT_EQ(own, errors[host]);
    });
  }
}

TEST_P(Mean, SendsTheBytesThatItAnnounces) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitMean mean(comm, pool, kSizes, {.bits = bits});
    std::vector<std::size_t> units(kSizes.size());
    std::iota(units.begin(), units.end(), std::size_t{0});
    Values all = gradient(comm.rank(), 0);
    const std::uint64_t before = comm.counters().bytes_sent;
    EXPECT_TRUE(mean.average({all, units}));
    EXPECT_EQ(comm.counters().bytes_sent - before, mean.bytes_per_pass());
  });
}

// Few values, so that each is a multiple of its block's step.
TEST_P(Mean, TakesBFloat16) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    for (const DType residuals : {DType::kFloat32, DType::kBFloat16}) {
      LowBitMean mean(comm, pool, kSizes,
                      {.bits = bits, .residual_dtype = residuals});
      const std::vector<std::size_t> units = {2};
      const auto top = static_cast<float>((1 << (bits - 1)) - 1);
      std::vector<BFloat16> part(7, to_bfloat16(top));
      part[3] = to_bfloat16(-3);
      const std::vector<BFloat16> want = part;
      EXPECT_TRUE(mean.average({part, units, 4}));
      for (std::size_t i = 0; i < part.size(); ++i)
        EXPECT_NEAR(to_float(part[i]), to_float(want[i]), 1e-6) << i;
    }
  });
}

TEST(MeanOfParts, OfOneRankIsItsGradient) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitMean mean(comm, pool, kSizes, {});
    Values part = gathered(gradient(0, 0), {4});
    const Values want = part;
    EXPECT_TRUE(mean.average({part, std::vector<std::size_t>{4}}));
    EXPECT_EQ(part, want);
    EXPECT_EQ(mean.begin({part, std::vector<std::size_t>{4}}),
              std::vector<bool>{true});
    EXPECT_EQ(part, want);
    EXPECT_EQ(mean.finish(), std::vector<bool>());
    EXPECT_EQ(mean.bytes_per_pass(), 0u);
  });
}

template <class T>
void expect_saturation(T largest, T less, double loss_scale) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<std::size_t> sizes{1024}, units{0};
    LowBitMean mean(comm, pool, sizes, {.bits = 4});
    for (int pass = 0; pass < 8; ++pass) {
      std::vector<T> values(1024, largest);
      // Rounded down, so that the next pass adds a residual to the largest.
      for (std::size_t i = 1; pass % 2 == 0 && i < values.size(); i += 3)
        values[i] = less;
      EXPECT_TRUE(mean.average(
          {.values = values, .units = units, .loss_scale = loss_scale}));
      for (const T value : values) {
        ASSERT_TRUE(std::isfinite(to_float(value)));
        ASSERT_GT(to_float(value), 40000.0f);
      }
    }
  });
}

// With a residual, a code may lie above the largest value of fp16. bf16 ends
// below fp32, which rounds to infinity from there on.
TEST(MeanOfParts, SaturatesFiniteGradientsOf16Bits) {
  expect_saturation(to_half(65504.0f), to_half(60000.0f), 1);
  expect_saturation(to_bfloat16(0x1.FEp127f), to_bfloat16(0x1.D4p127f), 4096);
}

TEST(MeanOfParts, RefusesInvalidParts) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitMean mean(comm, pool, kSizes, {});
    const auto refused = [&](Values part, std::vector<std::size_t> units,
                             double scale) {
      test::expect_invalid({"Part."}, [&] {
        static_cast<void>(mean.begin({part, units, scale}));
      });
    };
    refused(Values(1), {8}, 1);
    refused(Values(2), {0, 0}, 1);
    refused(Values(2), {0}, 1);
    const auto refused_scale = [&](double scale) {
      Values part(1);
      const std::vector<std::size_t> units{0};
      test::expect_invalid({"loss_scale must be in [2^-126, 2^127]"}, [&] {
        static_cast<void>(mean.average({part, units, scale}));
      });
    };
    for (const double scale : {0.0, -1.0, 1e-300, 0x1p-127, 0x1p128,
                               std::numeric_limits<double>::quiet_NaN()})
      refused_scale(scale);
    Values begun(1);
    const std::vector<std::size_t> first{0};
    EXPECT_EQ(mean.begin({begun, first}), std::vector<bool>());
    refused(Values(1), {0}, 1);
    test::expect_error(
        ErrorCode::kFailedPrecondition, {"average() while a part"}, [&] {
          Values other(7);
          static_cast<void>(mean.average({other, std::vector<std::size_t>{2}}));
        });
    test::expect_error(ErrorCode::kFailedPrecondition, {"load_errors()"}, [&] {
      mean.load_errors(Values(kElements), Values(kElements));
    });
    EXPECT_EQ(mean.finish(), std::vector<bool>{true});
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"server"},
                       [&] { mean.load_errors(Values(kElements), Values(3)); });
    test::expect_invalid({"bits"}, [&] {
      const LowBitMean other(comm, pool, kSizes, {.bits = 1});
    });
  });
}

}  // namespace
}  // namespace thinwire::exchange::low_bit_mean_test
