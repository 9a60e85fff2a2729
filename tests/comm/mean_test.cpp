// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "comm/values.h"
#include "support/ranks.h"
#include "support/same_bits.h"

namespace thinwire::comm::mean_test {
namespace {

// (group): what ReduceOp::kMean is, from its definition.
class Mean : public ::testing::TestWithParam<test::Group> {
 protected:
  static constexpr std::size_t kElements = 4097;
  const std::size_t ranks = static_cast<std::size_t>(GetParam().world_size);

  // The rank's value as T, and the mean of all of them in A, rounded to T.
  static void get(double x, float& value) { value = static_cast<float>(x); }
  static void get(double x, double& value) { value = x; }
  static void get(double x, Half& value) {
    value = to_half(static_cast<float>(x));
  }
  static void get(double x, BFloat16& value) {
    value = to_bfloat16(static_cast<float>(x));
  }
  static float widened(float value) { return value; }
  static double widened(double value) { return value; }
  static float widened(Half value) { return to_float(value); }
  static float widened(BFloat16 value) { return to_float(value); }

  template <class T>
  static T value_of(int rank, std::size_t i) {
    T value;
    get(test::uneven(rank, i), value);
    return value;
  }

  template <class T>
  T mean(std::size_t i) const {
    auto sum = widened(value_of<T>(0, i));
    using A = decltype(sum);
    for (int rank = 1; rank < GetParam().world_size; ++rank)
      sum += widened(value_of<T>(rank, i));
    T result;
    get(sum * static_cast<A>(1.0 / static_cast<double>(ranks)), result);
    return result;
  }

  template <class T>
  void expect_means(Communicator& comm) const {
    std::vector<T> want(kElements);
    for (std::size_t i = 0; i < kElements; ++i) want[i] = mean<T>(i);

    std::vector<T> all(kElements);
    for (std::size_t i = 0; i < kElements; ++i)
      all[i] = value_of<T>(comm.rank(), i);
    comm.all_reduce(all, ReduceOp::kMean);
    EXPECT_TRUE(test::same_bits<T>(all, want)) << to_string(dtype_of<T>);

    // The same values, for each rank a piece of its own.
    const std::size_t piece = kElements / ranks;
    std::vector<T> input(piece * ranks);
    for (std::size_t i = 0; i < input.size(); ++i)
      input[i] = value_of<T>(comm.rank(), i);
    std::vector<T> output(piece);
    comm.reduce_scatter(input, output, ReduceOp::kMean);
    const auto begin = piece * static_cast<std::size_t>(comm.rank());
    EXPECT_TRUE(test::same_bits<T>(
        output, std::span<const T>(want).subspan(begin, piece)))
        << to_string(dtype_of<T>);
  }
};

TEST_P(Mean, IsTheSumInRankOrderTimesOneShareRoundedOnce) {
  test::run_ranks(GetParam(), [&](Communicator& comm) {
    expect_means<float>(comm);
    expect_means<double>(comm);
    expect_means<Half>(comm);
    expect_means<BFloat16>(comm);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Mean, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

TEST(MeanOfOneRank, IsTheIdentity) {
  test::run_ranks("local", 1, [](Communicator& comm) {
    const std::vector<Half> odd = {{0x7c01}, {0x8000}, {0x0001}, {0xfc00}};
    std::vector<Half> data = odd;
    std::vector<Half> output(4);
    comm.all_reduce(data, ReduceOp::kMean);
    comm.reduce_scatter(data, output, ReduceOp::kMean);
    for (std::size_t i = 0; i < odd.size(); ++i) {
      EXPECT_EQ(data[i].bits, odd[i].bits);
      EXPECT_EQ(output[i].bits, odd[i].bits);
    }
  });
}

}  // namespace
}  // namespace thinwire::comm::mean_test
