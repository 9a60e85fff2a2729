// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/compressed_all_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::compressed_all_reduce_test {
namespace {

using test::Exchange;
using test::total;

class Worlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, Worlds, ::testing::Values(2, 3, 4, 8));

// Results of three calls of all_reduce(), one after the other, per rank.
std::vector<std::vector<float>> run(
    int world, const std::vector<Range>& units,
    const CompressedAllReduceOptions& options = {}, int threads = 1) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    Exchange exchange(comm, units, options, threads);
    auto& mine = results[static_cast<std::size_t>(comm.rank())];
    for (std::uint32_t step = 0; step < 3; ++step) {
      std::vector<float> values = test::layered_values(
          total(units), step * 10 + static_cast<std::uint32_t>(comm.rank()));
      EXPECT_EQ(exchange.all.all_reduce(values), -1);
      mine.insert(mine.end(), values.begin(), values.end());
    }
  });
  return results;
}

TEST_P(Worlds, GetTheSameBitsForAnyBucketsAndThreads) {
  const std::vector<Range> units = test::awkward_units();
  const auto want = run(GetParam(), units);
  for (const auto& of_rank : want) EXPECT_EQ(of_rank, want[0]);
  for (const std::size_t bucket : {1, 1000, 1024, 5000})
    EXPECT_EQ(run(GetParam(), units, {.blocks = {.bucket_elements = bucket}}),
              want)
        << bucket;
  EXPECT_EQ(run(GetParam(), units, {}, /*threads=*/3), want);
}

TEST_P(Worlds, ABlockOfZerosStaysZero) {
  const std::vector<Range> units = {{0, 2048}};
  comm::run_local_ranks(GetParam(), [&](comm::Communicator& comm) {
    Exchange exchange(comm, units);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values = test::layered_values(2048, 1);
      std::fill_n(values.begin(), 1024, 0.0f);
      exchange.all.all_reduce(values);
      for (std::size_t i = 0; i < 1024; ++i) ASSERT_EQ(values[i], 0.0f) << i;
      EXPECT_NE(values[1024], 0.0f);
    }
  });
}

class NotFinite : public ::testing::TestWithParam<float> {};
INSTANTIATE_TEST_SUITE_P(
    All, NotFinite,
    ::testing::Values(std::numeric_limits<float>::quiet_NaN(),
                      std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity()));

TEST_P(NotFinite, IsReportedEverywhereAndChangesNothing) {
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(comm, units, {.blocks = {.bucket_elements = 1500}});
    std::vector<float> values = test::layered_values(total(units), 5);
    exchange.all.all_reduce(values);
    const auto worker = exchange.all.worker_error().as<float>();
    const auto server = exchange.all.server_error().as<float>();
    const std::vector<float> e(worker.begin(), worker.end());
    const std::vector<float> d(server.begin(), server.end());

    std::vector<float> bad = test::layered_values(total(units), 6);
    if (comm.rank() == 1) bad.back() = GetParam();
    const std::vector<float> before = bad;
    EXPECT_EQ(exchange.all.all_reduce(bad), 1);
    for (std::size_t i = 0; i + 1 < bad.size(); ++i)
      ASSERT_EQ(bad[i], before[i]);
    EXPECT_EQ(std::vector<float>(worker.begin(), worker.end()), e);
    EXPECT_EQ(std::vector<float>(server.begin(), server.end()), d);
    // And it goes on.
    EXPECT_EQ(exchange.all.all_reduce(values), -1);
  });
}

TEST(CompressedAllReduce, LeavesTheValuesOfAGroupOfOneAlone) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    Exchange exchange(comm, test::awkward_units());
    std::vector<float> values =
        test::layered_values(total(test::awkward_units()), 1);
    const std::vector<float> want = values;
    EXPECT_EQ(exchange.all.all_reduce(values), -1);
    EXPECT_EQ(values, want);
    EXPECT_EQ(comm.counters().bytes_sent, 0u);
  });
}

TEST(CompressedAllReduce, MaskedElementsAffectNothing) {
  const std::vector<Range> units = {{0, 1024}, {1024, 100}};
  const auto masked = [](std::size_t i) { return i % 5 == 0 || i >= 1024; };
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange with(comm, units);
    Exchange without(comm, units);
    with.all.set_active(ActiveMask(with.all.layout(),
                                   [&](std::size_t i) { return !masked(i); }));
    for (std::uint32_t step = 0; step < 3; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      std::vector<float> values = test::layered_values(1124, seed);
      // Garbage where masked must not matter.
      std::vector<float> garbage = values;
      for (std::size_t i = 0; i < values.size(); ++i)
        if (masked(i)) {
          values[i] = 0;
          garbage[i] = 1e6f;
        }
      with.all.all_reduce(garbage);
      for (std::size_t i = 0; i < garbage.size(); ++i)
        ASSERT_EQ(garbage[i] == 0, masked(i)) << i;
      const auto e = with.all.worker_error().as<float>();
      for (std::size_t i = 0; i < e.size(); ++i)
        ASSERT_TRUE(!masked(i) || e[i] == 0.0f) << i;
      // The scale is the RMS of the active elements alone.
      if (step == 0) {
        double sum = 0;
        std::vector<float> x = test::layered_values(1124, seed);
        std::size_t count = 0;
        for (std::size_t i = 0; i < 1024; ++i)
          if (!masked(i)) {
            sum += double{x[i]} * x[i];
            ++count;
          }
        const double rms = std::sqrt(sum / static_cast<double>(count));
        // e = c - s q of element 1, which is active: s = |c - e|.
        EXPECT_NEAR(std::abs(double{x[1]} - e[1]), rms, rms * 1e-6);
      }
    }
  });
}

TEST(CompressedAllReduce, HalfResidualsStayCloseAndEqualOnAllRanks) {
  const std::vector<Range> units = test::awkward_units();
  const auto full = run(4, units);
  const auto half = run(4, units, {.residual_dtype = DType::kBFloat16});
  for (const auto& result : half) EXPECT_EQ(result, half[0]);
  // The first call has no residual yet, so it does not see the difference.
  for (std::size_t i = 0; i < total(units); ++i)
    ASSERT_EQ(half[0][i], full[0][i]) << i;
}

TEST(CompressedAllReduce, WorksWithFewerElementsThanRanksAndWithout) {
  for (const std::size_t n : {0, 1, 3}) {
    comm::run_local_ranks(8, [&](comm::Communicator& comm) {
      const std::vector<Range> units = {{0, n}};
      Exchange exchange(comm, units);
      std::vector<float> values(n, 2.0f);
      EXPECT_EQ(exchange.all.all_reduce(values), -1);
      for (const float value : values) EXPECT_FLOAT_EQ(value, 2.0f);
    });
  }
}

TEST(CompressedAllReduce, ContinuesBitEqualFromLoadedErrors) {
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange one(comm, units);
    const auto seed = static_cast<std::uint32_t>(comm.rank());
    std::vector<float> values = test::layered_values(total(units), seed);
    one.all.all_reduce(values);
    Exchange two(comm, units);
    two.all.load_errors(one.all.worker_error(), one.all.server_error());
    std::vector<float> next = test::layered_values(total(units), seed + 50);
    std::vector<float> same = next;
    one.all.all_reduce(next);
    two.all.all_reduce(same);
    EXPECT_EQ(next, same);
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"worker_error"}, [&] {
      two.all.load_errors(std::vector<float>(3), two.all.server_error());
    });
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"server_error"}, [&] {
      two.all.load_errors(two.all.worker_error(),
                          std::vector<float>(total(units) + 1));
    });
  });
}

TEST(CompressedAllReduce, RefusesWhatDoesNotFitBeforeSending) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<Range> units = {{0, 10}};
    test::expect_invalid({"world_size", "got 3"}, [&] {
      CompressedAllReduce(comm, pool, units, {.blocks = {.world_size = 3}});
    });
    test::expect_invalid({"residual_dtype"}, [&] {
      CompressedAllReduce(
          comm, pool, units,
          {.blocks = {.world_size = 2}, .residual_dtype = DType::kFloat16});
    });
    Exchange exchange(comm, units);
    std::vector<float> short_values(9);
    test::expect_invalid({"10", "9"},
                         [&] { exchange.all.all_reduce(short_values); });
    std::vector<double> doubles(10);
    test::expect_invalid({"float64", "float32"},
                         [&] { exchange.all.all_reduce(doubles); });
  });
}

// ---- runs that are queued at once

using kernels::Signs;

using test::SignAverage;
using test::SignsExchange;

class LaunchedRun : public ::testing::TestWithParam<std::pair<int, DType>> {};
INSTANTIATE_TEST_SUITE_P(All, LaunchedRun,
                         ::testing::Values(std::pair(1, DType::kFloat32),
                                           std::pair(2, DType::kFloat32),
                                           std::pair(3, DType::kBFloat16),
                                           std::pair(8, DType::kFloat32)));

SignAverage::Options options_of(DType dtype) {
  return {.blocks = {.bucket_elements = 1500}, .residual_dtype = dtype};
}

SignExchange::Source source_of(const SignAverage& all,
                               const std::vector<float>& x) {
  return [&](std::size_t b) {
    return kernels::SignInput{.values = x.data() +
                                        all.layout().blocks()[b].values.offset};
  };
}

SignExchange::Sink sink_of(const SignAverage& all, std::vector<float>& result) {
  return [&](std::size_t b, Signs mean) {
    const Range& at = all.layout().blocks()[b].values;
    kernels::sign_decode(mean, nullptr, result.data() + at.offset, at.size);
  };
}

void expect_same_errors(SignAverage& a, SignAverage& b) {
  EXPECT_EQ(test::floats_of(a.worker_error()),
            test::floats_of(b.worker_error()));
  EXPECT_EQ(test::floats_of(a.server_error()),
            test::floats_of(b.server_error()));
}

// The caller's values may change once it is launched.
TEST_P(LaunchedRun, HasTheBitsOfABlockingRun) {
  const auto [world, dtype] = GetParam();
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(world, [&, type = dtype](comm::Communicator& comm) {
    SignsExchange plain(comm, units, options_of(type));
    SignsExchange launched(comm, units, options_of(type), /*threads=*/2);
    const std::size_t size = units.back().end();
    std::vector<float> want(size);
    std::vector<float> got(size);
    for (std::uint32_t t = 1; t <= 4; ++t) {
      const auto rank = static_cast<std::uint32_t>(comm.rank());
      std::vector<float> x = test::layered_values(size, 8 * t + rank);
      plain.all.run(source_of(plain.all, x), sink_of(plain.all, want));
      launched.all.launch(source_of(launched.all, x));
      EXPECT_TRUE(launched.all.has_begun());
      x.assign(size, NAN);
      comm.barrier();
      launched.all.finish(sink_of(launched.all, got));
      EXPECT_FALSE(launched.all.has_begun());
      ASSERT_EQ(got, want) << "run " << t;
      expect_same_errors(launched.all, plain.all);
    }
  });
}

}  // namespace
}  // namespace thinwire::exchange::compressed_all_reduce_test
