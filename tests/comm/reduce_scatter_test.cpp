// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "comm/values.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::comm::reduce_scatter_test {
namespace {

using test::filled;
using test::is_float;
using test::same_bytes;

using Counts = std::vector<std::size_t>;
using Param = std::tuple<test::Group, std::size_t>;

std::string name_of(const ::testing::TestParamInfo<Param>& info) {
  const auto& [group, n] = info.param;
  return group.backend + std::to_string(group.world_size) + "_n" +
         std::to_string(n);
}

Buffer copy_of(ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (!values.empty()) std::memcpy(copy.data(), values.data(), values.bytes());
  return copy;
}

std::size_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

Range piece_of(const Counts& counts, int rank) {
  const auto at = counts.begin() + rank;
  return {std::accumulate(counts.begin(), at, std::size_t{0}), *at};
}

// This rank's values: an order or a rounding of its own shows in every dtype
// where there can be one. They repeat, to be made quickly.
Buffer values(const Communicator& comm, DType dtype, std::size_t size) {
  constexpr std::size_t kPeriod = 97;
  const auto value = [&](std::size_t i) {
    return is_float(dtype) ? test::uneven(comm.rank(), i)
                           : test::sample(comm.rank(), i);
  };
  if (size <= kPeriod) return filled(dtype, size, value);
  Buffer result(size, dtype);
  for (std::size_t i = 0; i < kPeriod; ++i)
    test::set(result.view(), i, value(i));
  for (std::size_t done = kPeriod; done < size;) {
    const std::size_t more = std::min(done, size - done);
    std::memcpy(result.view().subview(done, more).data(), result.data(),
                more * size_of(dtype));
    done += more;
  }
  return result;
}

// What reduce_scatter has to leave on this rank, by all_reduce.
Buffer reduced(Communicator& comm, ConstView input, Range own, ReduceOp op) {
  Buffer all = copy_of(input);
  comm.all_reduce(all.view(), op);
  return copy_of(all.view().subview(own.offset, own.size));
}

// (group, elements)
class ReduceScatter : public ::testing::TestWithParam<Param> {
 protected:
  const test::Group group = std::get<0>(GetParam());
  const std::size_t n = std::get<1>(GetParam());
  const std::size_t ranks = static_cast<std::size_t>(group.world_size);

  // Equal; longer with the rank, every third one empty; all on one rank.
  [[nodiscard]] std::vector<Counts> all_counts() const {
    std::vector<Counts> result(3, Counts(ranks, 0));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      result[0][rank] = n;
      result[1][rank] = rank % 3 == 0 ? 0 : n + 2 * rank;
    }
    result[2][0] = n;
    if (ranks > 1) {
      result.push_back(Counts(ranks, 0));
      result[3][ranks - 1] = n;
    }
    return result;
  }

  void for_each_case(const std::function<void(Communicator&, DType, ReduceOp,
                                              const Counts&)>& body) const {
    test::run_ranks(group, [&](Communicator& comm) {
      for (const DType dtype : test::kAllDTypes) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
          if (op == ReduceOp::kMean && !is_float(dtype)) continue;
          for (const Counts& counts : all_counts()) {
            SCOPED_TRACE(std::string(to_string(dtype)) + " op " +
                         std::to_string(static_cast<int>(op)) + " counts[0] " +
                         std::to_string(counts[0]));
            body(comm, dtype, op, counts);
          }
        }
      }
    });
  }
};

// In place too, where it changes only the own piece of its input.
TEST_P(ReduceScatter, EqualsThePieceOfAnAllReduceBitForBit) {
  for_each_case(
      [](Communicator& comm, DType dtype, ReduceOp op, const Counts& counts) {
        const Range own = piece_of(counts, comm.rank());
        Buffer data = values(comm, dtype, sum_of(counts));
        Buffer want = copy_of(data.view());
        const Buffer piece = reduced(comm, data.view(), own, op);
        Buffer output(own.size, dtype);
        comm.reduce_scatter(data.view(), output.view(), counts, op);
        EXPECT_TRUE(same_bytes(output.view(), piece.view()));
        EXPECT_TRUE(same_bytes(data.view(), want.view()));
        if (own.size > 0) {
          std::memcpy(want.view().subview(own.offset, own.size).data(),
                      piece.data(), piece.bytes());
        }
        comm.reduce_scatter(
            data.view(), data.view().subview(own.offset, own.size), counts, op);
        EXPECT_TRUE(same_bytes(data.view(), want.view()));
      });
}

TEST_P(ReduceScatter, EqualPiecesNeedNoCounts) {
  test::run_ranks(group, [&](Communicator& comm) {
    const Range own = piece_of(Counts(ranks, n), comm.rank());
    Buffer data = values(comm, DType::kFloat16, n * ranks);
    const Buffer want = reduced(comm, data.view(), own, ReduceOp::kMean);
    Buffer wide(n, DType::kFloat32);
    comm.reduce_scatter(data.view(), wide.view(), ReduceOp::kMean);
    const View place = data.view().subview(own.offset, own.size);
    comm.reduce_scatter(data.view(), place, ReduceOp::kMean);
    EXPECT_TRUE(same_bytes(place, want.view()));
    for (std::size_t i = 0; i < n && ranks > 1; ++i) {
      ASSERT_EQ(to_half(wide.as<float>()[i]).bits, want.as<Half>()[i].bits)
          << i;
    }
  });
}

TEST_P(ReduceScatter, CountsBytesInTheDTypeOfItsInput) {
  test::run_ranks(group, [&](Communicator& comm) {
    std::uint64_t sent = 0;
    for (const Counts& counts : all_counts()) {
      const Range own = piece_of(counts, comm.rank());
      const std::uint64_t others = sum_of(counts) - own.size;
      const Buffer input = values(comm, DType::kBFloat16, sum_of(counts));
      Buffer output(own.size, DType::kBFloat16);
      Buffer wide(own.size, DType::kFloat32);
      comm.reduce_scatter(input.view(), output.view(), counts);
      EXPECT_EQ(comm.counters().bytes_sent, sent += 2 * others);
      comm.reduce_scatter(input.view(), wide.view(), counts);
      EXPECT_EQ(comm.counters().bytes_sent, sent += 2 * others);
    }
    EXPECT_EQ(comm.counters().collectives, 2 * all_counts().size());
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReduceScatter,
                         ::testing::Combine(::testing::ValuesIn(test::groups()),
                                            ::testing::Values(0, 1, 7, 31, 33,
                                                              4097)),
                         name_of);

// (group)
class LongReduceScatter : public ::testing::TestWithParam<test::Group> {
 protected:
  // The first piece is the shortest, and all but the last end in its first
  // block or never begin.
  static Counts counts() {
    Counts result;
    for (int rank = 0; rank < GetParam().world_size; ++rank)
      result.push_back(rank % 2 == 0 ? 0 : 1000);
    result.back() = 1'500'001;  // of several blocks of the scratch
    return result;
  }
};

TEST_P(LongReduceScatter, LongerThanItsScratchMemoryIsExact) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const Range own = piece_of(counts(), comm.rank());
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      Buffer data = values(comm, dtype, sum_of(counts()));
      const Buffer want = reduced(comm, data.view(), own, ReduceOp::kMean);
      Buffer output(own.size, dtype);
      comm.reduce_scatter(data.view(), output.view(), counts(),
                          ReduceOp::kMean);
      EXPECT_TRUE(same_bytes(output.view(), want.view())) << to_string(dtype);
      const View place = data.view().subview(own.offset, own.size);
      comm.reduce_scatter(data.view(), place, counts(), ReduceOp::kMean);
      EXPECT_TRUE(same_bytes(place, want.view())) << to_string(dtype);
    }
  });
}

TEST_P(LongReduceScatter, DoesNotReadItsCountsAfterTheCall) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const Range own = piece_of(counts(), comm.rank());
    std::vector<float> input(sum_of(counts()), 1.0f);
    std::vector<float> output(own.size);
    Work work;
    {
      Counts passing = counts();
      work = comm.queue_reduce_scatter(input, output, passing);
      passing.assign(passing.size(), 0);
    }
    work.wait();
    EXPECT_EQ(output,
              std::vector<float>(own.size, static_cast<float>(comm.size())));
  });
}

INSTANTIATE_TEST_SUITE_P(All, LongReduceScatter,
                         ::testing::ValuesIn(test::groups()),
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

TEST(ReduceScatterOfOneRank, WidensExactly) {
  test::run_ranks("local", 1, [](Communicator& comm) {
    // Zeros, subnormals, the largest, infinities.
    const std::vector<Half> halves = {{0x0000}, {0x8000}, {0x0001}, {0x83ff},
                                      {0x3c01}, {0x7bff}, {0x7c00}, {0xfc00}};
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      std::vector<float> wide(halves.size());
      comm.reduce_scatter(halves, wide, Counts{halves.size()}, op);
      for (std::size_t i = 0; i < halves.size(); ++i) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
                  std::bit_cast<std::uint32_t>(to_float(halves[i])))
            << i;
      }
    }
    EXPECT_EQ(comm.counters().bytes_sent, 0u);
  });
}

}  // namespace
}  // namespace thinwire::comm::reduce_scatter_test
