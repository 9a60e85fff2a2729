// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::comm::arguments_test {
namespace {

using test::expect_error;

constexpr auto kInvalid = ErrorCode::kInvalidArgument;

// (group): wrong arguments are refused on the rank that gives them, and the
// group can be used afterwards.
class Arguments : public ::testing::TestWithParam<test::Group> {
 protected:
  static void refuses(
      const std::function<void(Communicator&, std::size_t ranks)>& calls) {
    test::run_ranks(GetParam(), [&](Communicator& comm) {
      calls(comm, static_cast<std::size_t>(comm.size()));
      EXPECT_EQ(comm.counters().collectives, 0u);
      std::vector<float> data(7, 1.0f);
      comm.all_reduce(data);
      EXPECT_EQ(data[6], static_cast<float>(comm.size()));
    });
  }
};

TEST_P(Arguments, RootMustBeARank) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<float> data(3);
    for (const int root : {-1, comm.size()}) {
      expect_error(kInvalid,
                   {"broadcast", "root", "[0, " + std::to_string(ranks) + ")",
                    std::to_string(root)},
                   [&] { comm.broadcast(data, root); });
    }
  });
}

TEST_P(Arguments, SizesMustFitTheNumberOfRanks) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<float> small(3);
    std::vector<float> large(3 * ranks + 1);
    const std::string given = "got " + std::to_string(large.size());
    expect_error(kInvalid, {"reduce_scatter", "input.size()", given},
                 [&] { comm.reduce_scatter(large, small); });
    expect_error(kInvalid, {"all_gather", "output.size()", given},
                 [&] { comm.all_gather(small, large); });
    std::vector<float> other(3 * ranks);
    expect_error(kInvalid, {"all_to_all", "output.size()"},
                 [&] { comm.all_to_all(other, large); });
    const std::size_t huge = std::numeric_limits<std::size_t>::max() / 2 + 2;
    expect_error(kInvalid, {"all_gather", "output.size()"}, [&] {
      comm.all_gather(ConstView(small.data(), huge, DType::kUInt8),
                      View(other.data(), 2, DType::kUInt8));
    });
  });
}

TEST_P(Arguments, CountsMustNameEveryRankAndAddUp) {
  refuses([](Communicator& comm, std::size_t ranks) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> input(3);
    std::vector<float> output(3 * ranks);
    std::vector<std::size_t> counts(ranks + 1, 3);
    expect_error(kInvalid, {"all_gather", "counts.size()"},
                 [&] { comm.all_gather(input, output, counts); });
    counts.pop_back();
    counts[rank] = 4;
    expect_error(kInvalid, {"all_gather", "counts", "add up"},
                 [&] { comm.all_gather(input, output, counts); });
    output.resize(3 * ranks + 1);
    expect_error(kInvalid, {"all_gather", "input.size()", "4", "got 3"},
                 [&] { comm.all_gather(input, output, counts); });
    std::vector<float> wide(3 * ranks);
    const std::vector<std::size_t> threes(ranks, 3);
    expect_error(kInvalid, {"all_to_all", "send_counts", "add up"},
                 [&] { comm.all_to_all(wide, counts, wide, threes); });
    expect_error(kInvalid, {"all_to_all", "receive_counts", "add up"},
                 [&] { comm.all_to_all(wide, threes, wide, counts); });
    expect_error(kInvalid, {"all_to_all", "receive_counts[rank()]"},
                 [&] { comm.all_to_all(wide, threes, output, counts); });
    const std::vector<std::size_t> overflow(
        ranks, std::numeric_limits<std::size_t>::max());
    expect_error(kInvalid, {"all_gather", "counts"},
                 [&] { comm.all_gather(input, output, overflow); });
  });
}

TEST_P(Arguments, DTypesMustAgree) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<float> floats(3 * ranks);
    std::vector<std::int32_t> integers(3 * ranks);
    const View piece = View(integers).subview(0, 3);
    expect_error(kInvalid, {"reduce_scatter", "dtype", "float32", "int32"},
                 [&] { comm.reduce_scatter(floats, piece); });
    expect_error(kInvalid, {"all_gather", "dtype", "float32", "int32"},
                 [&] { comm.all_gather(piece, floats); });
    expect_error(kInvalid, {"all_to_all", "dtype", "float32", "int32"},
                 [&] { comm.all_to_all(floats, integers); });
  });
}

TEST_P(Arguments, AMeanIsOfFloats) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<std::int32_t> words(3);
    std::vector<std::int64_t> longs(3);
    const std::vector<std::uint8_t> bytes(3 * ranks);
    std::vector<std::uint8_t> piece(3);
    expect_error(kInvalid, {"all_reduce", "dtype", "kMean", "got int32"},
                 [&] { comm.all_reduce(words, ReduceOp::kMean); });
    expect_error(kInvalid, {"all_reduce", "dtype", "kMean", "got int64"},
                 [&] { comm.all_reduce(longs, ReduceOp::kMean); });
    expect_error(kInvalid, {"reduce_scatter", "dtype", "kMean", "got uint8"},
                 [&] { comm.reduce_scatter(bytes, piece, ReduceOp::kMean); });
  });
}

TEST_P(Arguments, InputAndOutputMustNotOverlap) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<float> data(3 * ranks + 3);
    const View all = View(data).subview(0, 3 * ranks);
    const std::size_t own = 3 * static_cast<std::size_t>(comm.rank());
    expect_error(kInvalid, {"reduce_scatter", "overlap"}, [&] {
      comm.reduce_scatter(all, View(data).subview(own + 1, 3));
    });
    expect_error(kInvalid, {"all_gather", "overlap"},
                 [&] { comm.all_gather(View(data).subview(own + 1, 3), all); });
    expect_error(kInvalid, {"all_to_all", "overlap"}, [&] {
      comm.all_to_all(all, View(data).subview(1, 3 * ranks));
    });
  });
}

TEST_P(Arguments, MemoryMustNotBeNull) {
  refuses([](Communicator& comm, std::size_t ranks) {
    const View null(nullptr, 3 * ranks, DType::kFloat32);
    const View null_piece(nullptr, 3, DType::kFloat32);
    std::vector<float> all(3 * ranks);
    std::vector<float> piece(3);
    expect_error(kInvalid, {"all_reduce", "data", "null"},
                 [&] { comm.all_reduce(null); });
    expect_error(kInvalid, {"broadcast", "data", "null"},
                 [&] { comm.broadcast(null, 0); });
    expect_error(kInvalid, {"reduce_scatter", "input", "null"},
                 [&] { comm.reduce_scatter(null, piece); });
    expect_error(kInvalid, {"all_gather", "input", "null"},
                 [&] { comm.all_gather(null_piece, all); });
    expect_error(kInvalid, {"all_to_all", "output", "null"},
                 [&] { comm.all_to_all(all, null); });
  });
}

INSTANTIATE_TEST_SUITE_P(All, Arguments, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

TEST(CommunicatorOptions, TimeoutMustBePositive) {
  for (const int timeout : {0, -5}) {
    expect_error(kInvalid, {"timeout", "> 0", "got " + std::to_string(timeout)},
                 [&] {
                   const auto group = make_local_group(
                       2, {.timeout = std::chrono::milliseconds(timeout)});
                 });
  }
}

TEST(LocalGroup, NeedsAtLeastOneRank) {
  expect_error(kInvalid, {"world_size", ">= 1", "got 0"},
               [] { const auto group = make_local_group(0); });
  expect_error(kInvalid, {"world_size", ">= 1", "got -2"},
               [] { run_local_ranks(-2, [](Communicator&) {}); });
}

TEST(Communicator, NeedsATransport) {
  expect_error(kInvalid, {"transport"}, [] { Communicator comm(nullptr); });
}

}  // namespace
}  // namespace thinwire::comm::arguments_test
