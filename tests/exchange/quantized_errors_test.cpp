// SPDX-License-Identifier: Apache-2.0
// What rounding takes, who keeps it, and what is refused.
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"
#include "thinwire/exchange/quantized_all_reduce.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange::quantized_errors_test {
namespace {

using test::floats_of;
using test::QuantizedExchange;

std::size_t total(const std::vector<Range>& units) {
  return units.back().end();
}

QuantizedAllReduceOptions with_bits(int bits) {
  return {.blocks = {.bucket_elements = 1500, .bits = bits}};
}

// (ranks, bits)
class QuantizedErrors : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const int world = std::get<0>(GetParam());
  const int bits = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, QuantizedErrors,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8),
                                            ::testing::Values(4, 8)));

// Bucket by bucket in any order, from any float dtype, with a factor: the bits
// of all_reduce(), and of its residuals.
TEST_P(QuantizedErrors, ARunBucketByBucketIsAllReduce) {
  const std::vector<Range> units = test::awkward_units();
  const std::size_t n = total(units);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const DType residuals : {DType::kFloat32, DType::kBFloat16})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        auto options = with_bits(bits);
        options.residual_dtype = residuals;
        QuantizedExchange whole(comm, units, options);
        QuantizedExchange parts(comm, units, options, /*threads=*/2);
        const BlockLayout& layout = parts.all.layout();
        const std::size_t buckets = layout.buckets().size();
        for (std::uint32_t step = 0; step < 4; ++step) {
          const std::vector<float> values = test::layered_values(
              n, step * 10 + static_cast<std::uint32_t>(comm.rank()));
          Buffer given(n, dtype);
          kernels::convert(values, given.view());
          std::vector<float> want(n);
          kernels::convert(std::as_const(given).view(), want);
          for (float& value : want) value *= 0.3f;
          EXPECT_EQ(whole.all.all_reduce(want), -1);

          parts.all.begin(
              [&](std::size_t b) {
                const Range& at = layout.blocks()[b].values;
                return given.view().subview(at.offset, at.size);
              },
              0.3f);
          EXPECT_TRUE(parts.all.has_begun());
          for (std::size_t k = 0; k < buckets; ++k)
            parts.all.add((k + step) % buckets);
          parts.all.finish();
          EXPECT_FALSE(parts.all.has_begun());
          std::vector<float> got(n);
          for (std::size_t b = 0; b < layout.blocks().size(); ++b)
            parts.all.read(b, got.data() + layout.blocks()[b].values.offset);
          ASSERT_EQ(got, want) << "step " << step;
        }
        EXPECT_EQ(floats_of(parts.all.worker_error()),
                  floats_of(whole.all.worker_error()));
        EXPECT_EQ(floats_of(parts.all.server_error()),
                  floats_of(whole.all.server_error()));

        // A run that is abandoned leaves no residuals.
        for (std::size_t added = 0; added <= buckets; ++added) {
          std::vector<float> x(n, 1.5f);
          parts.all.begin(
              [&](std::size_t b) {
                const Range& at = layout.blocks()[b].values;
                return View(x).subview(at.offset, at.size);
              },
              1);
          for (std::size_t k = 0; k < added; ++k) parts.all.add(k);
          parts.all.abandon();
          EXPECT_FALSE(parts.all.has_begun());
          for (const float e : floats_of(parts.all.worker_error()))
            ASSERT_EQ(e, 0);
        }
        whole.all.clear_errors();
        std::vector<float> again = test::layered_values(n, 99);
        std::vector<float> same = again;
        EXPECT_EQ(whole.all.all_reduce(again), -1);
        EXPECT_EQ(parts.all.all_reduce(same), -1);
        EXPECT_EQ(same, again);

        const std::vector<float> kept = floats_of(parts.all.worker_error());
        auto [worker, server] = parts.all.release_errors();
        EXPECT_EQ(floats_of(worker.view()), kept);
        QuantizedExchange heir(comm, units, options);
        heir.all.take_errors(std::move(worker), std::move(server));
        EXPECT_EQ(floats_of(heir.all.worker_error()), kept);
        EXPECT_EQ(floats_of(heir.all.server_error()),
                  floats_of(whole.all.server_error()));
      });
}

class QuantizedNotFinite : public ::testing::TestWithParam<float> {};
INSTANTIATE_TEST_SUITE_P(
    All, QuantizedNotFinite,
    ::testing::Values(std::numeric_limits<float>::quiet_NaN(),
                      std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity()));

TEST_P(QuantizedNotFinite, IsReportedEverywhereAndChangesNothing) {
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    QuantizedExchange exchange(comm, units, with_bits(4));
    std::vector<float> values = test::layered_values(total(units), 5);
    exchange.all.all_reduce(values);
    const std::vector<float> e = floats_of(exchange.all.worker_error());
    const std::vector<float> d = floats_of(exchange.all.server_error());
    std::vector<float> bad = test::layered_values(total(units), 6);
    const std::vector<float> before = bad;
    if (comm.rank() == 1) bad.back() = GetParam();
    EXPECT_EQ(exchange.all.all_reduce(bad), 1);
    for (std::size_t i = 0; i + 1 < bad.size(); ++i)
      ASSERT_EQ(bad[i], before[i]);
    EXPECT_EQ(floats_of(exchange.all.worker_error()), e);
    EXPECT_EQ(floats_of(exchange.all.server_error()), d);
    EXPECT_EQ(exchange.all.all_reduce(values), -1);
  });
}

TEST(QuantizedAllReduce, HalfResidualsStayCloseAndTheSameOnAllRanks) {
  const std::vector<Range> units = test::awkward_units();
  auto options = with_bits(4);
  const auto full = test::all_reduced<QuantizedExchange>(4, units, options);
  options.residual_dtype = DType::kBFloat16;
  const auto half = test::all_reduced<QuantizedExchange>(4, units, options);
  for (const auto& result : half) EXPECT_EQ(result, half[0]);
  // The first call has no residual yet, so it does not see the difference.
  for (std::size_t i = 0; i < total(units); ++i)
    ASSERT_EQ(half[0][i], full[0][i]) << i;
}

TEST(QuantizedAllReduce, LoadedErrorsContinueBitEqualAndClearedOnesAfresh) {
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    const auto seed = static_cast<std::uint32_t>(comm.rank());
    const std::vector<float> first = test::layered_values(total(units), seed);
    const std::vector<float> second =
        test::layered_values(total(units), seed + 50);
    const auto reduced = [](QuantizedExchange& by, std::vector<float> x) {
      EXPECT_EQ(by.all.all_reduce(x), -1);
      return x;
    };
    QuantizedExchange one(comm, units);
    const std::vector<float> fresh = reduced(one, first);
    QuantizedExchange two(comm, units);
    two.all.load_errors(one.all.worker_error(), one.all.server_error());
    EXPECT_EQ(reduced(two, second), reduced(one, second));
    one.all.clear_errors();
    EXPECT_EQ(reduced(one, first), fresh);
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"worker_error"}, [&] {
      two.all.load_errors(std::vector<float>(3), two.all.server_error());
    });
  });
}

TEST(QuantizedAllReduce, RefusesWhatDoesNotFitBeforeSending) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<Range> units = {{0, 10}};
    const auto refused = [&](QuantizedAllReduceOptions options,
                             std::initializer_list<std::string_view> words) {
      test::expect_error(ErrorCode::kInvalidArgument, words, [&] {
        QuantizedAllReduce(comm, pool, units, options);
      });
    };
    refused({.blocks = {.world_size = 3, .bits = 4}}, {"world_size", "got 3"});
    refused({.blocks = {.world_size = 2}}, {"bits", "4 or 8", "got 1"});
    refused({.blocks = {.world_size = 2, .bits = 3}}, {"bits", "got 3"});
    refused({.blocks = {.world_size = 2, .bits = 4},
             .residual_dtype = DType::kFloat16},
            {"residual_dtype"});

    QuantizedExchange exchange(comm, units);
    std::vector<float> short_values(9);
    test::expect_error(ErrorCode::kInvalidArgument, {"10", "9"},
                       [&] { exchange.all.all_reduce(short_values); });
  });
}

}  // namespace
}  // namespace thinwire::exchange::quantized_errors_test
