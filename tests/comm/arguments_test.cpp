// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"
#include "support/ranks.h"
#include "thinwire/core/buffer.h"

namespace thinwire::comm::arguments_test {
namespace {

using test::expect_invalid;

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
      expect_invalid({"broadcast", "root", "[0, " + std::to_string(ranks) + ")",
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
    expect_invalid({"reduce_scatter", "input.size()", given},
                   [&] { comm.reduce_scatter(large, small); });
    expect_invalid({"all_gather", "output.size()", given},
                   [&] { comm.all_gather(small, large); });
    std::vector<float> other(3 * ranks);
    expect_invalid({"all_to_all", "output.size()"},
                   [&] { comm.all_to_all(other, large); });
    const std::size_t huge = std::numeric_limits<std::size_t>::max() / 2 + 2;
    expect_invalid({"all_gather", "output.size()"}, [&] {
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
    expect_invalid({"all_gather", "counts.size()"},
                   [&] { comm.all_gather(input, output, counts); });
    counts.pop_back();
    counts[rank] = 4;
    expect_invalid({"all_gather", "counts", "add up"},
                   [&] { comm.all_gather(input, output, counts); });
    output.resize(3 * ranks + 1);
    expect_invalid({"all_gather", "input.size()", "4", "got 3"},
                   [&] { comm.all_gather(input, output, counts); });
    std::vector<float> wide(3 * ranks);
    const std::vector<std::size_t> threes(ranks, 3);
    expect_invalid({"all_to_all", "send_counts", "add up"},
                   [&] { comm.all_to_all(wide, counts, wide, threes); });
    expect_invalid({"all_to_all", "receive_counts", "add up"},
                   [&] { comm.all_to_all(wide, threes, wide, counts); });
    expect_invalid({"all_to_all", "receive_counts[rank()]"},
                   [&] { comm.all_to_all(wide, threes, output, counts); });
    const std::vector<std::size_t> overflow(
        ranks, std::numeric_limits<std::size_t>::max());
    expect_invalid({"all_gather", "counts"},
                   [&] { comm.all_gather(input, output, overflow); });
  });
}

TEST_P(Arguments, DTypesMustAgree) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<float> floats(3 * ranks);
    std::vector<std::int32_t> integers(3 * ranks);
    const View piece = View(integers).subview(0, 3);
    expect_invalid({"all_gather", "dtype", "float32", "int32"},
                   [&] { comm.all_gather(piece, floats); });
    expect_invalid({"all_to_all", "dtype", "float32", "int32"},
                   [&] { comm.all_to_all(floats, integers); });
  });
}

TEST_P(Arguments, MeansRequireFloats) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<std::int32_t> words(3);
    std::vector<std::int64_t> longs(3);
    const std::vector<std::uint8_t> bytes(3 * ranks);
    std::vector<std::uint8_t> piece(3);
    expect_invalid({"all_reduce", "dtype", "kMean", "got int32"},
                   [&] { comm.all_reduce(words, ReduceOp::kMean); });
    expect_invalid({"all_reduce", "dtype", "kMean", "got int64"},
                   [&] { comm.all_reduce(longs, ReduceOp::kMean); });
    expect_invalid({"reduce_scatter", "dtype", "kMean", "got uint8"},
                   [&] { comm.reduce_scatter(bytes, piece, ReduceOp::kMean); });
  });
}

TEST_P(Arguments, InputAndOutputMustNotOverlap) {
  refuses([](Communicator& comm, std::size_t ranks) {
    std::vector<float> data(3 * ranks + 3);
    const View all = View(data).subview(0, 3 * ranks);
    const std::size_t own = 3 * static_cast<std::size_t>(comm.rank());
    expect_invalid({"all_gather", "overlap"}, [&] {
      comm.all_gather(View(data).subview(own + 1, 3), all);
    });
    expect_invalid({"all_to_all", "overlap"}, [&] {
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
    expect_invalid({"all_reduce", "data", "null"},
                   [&] { comm.all_reduce(null); });
    expect_invalid({"broadcast", "data", "null"},
                   [&] { comm.broadcast(null, 0); });
    expect_invalid({"reduce_scatter", "input", "null"},
                   [&] { comm.reduce_scatter(null, piece); });
    expect_invalid({"reduce_scatter", "output", "null"},
                   [&] { comm.reduce_scatter(all, null_piece); });
    expect_invalid({"all_gather", "input", "null"},
                   [&] { comm.all_gather(null_piece, all); });
    expect_invalid({"all_to_all", "output", "null"},
                   [&] { comm.all_to_all(all, null); });
  });
}

// ---- of reduce_scatter(); both forms go the same way

using Counts = std::vector<std::size_t>;
constexpr std::size_t kEach = 3;

TEST_P(Arguments, CountsOfAReduceScatterMustNameEveryRankAndAddUp) {
  refuses([](Communicator& comm, std::size_t ranks) {
    const Counts counts(ranks, kEach);
    std::vector<float> input(kEach * ranks);
    std::vector<float> output(kEach);
    const auto refused = [&](const Counts& given,
                             std::initializer_list<std::string_view> parts) {
      expect_invalid(parts, [&] { comm.reduce_scatter(input, output, given); });
    };
    Counts wrong = counts;
    wrong.push_back(0);
    refused(wrong, {"reduce_scatter", "counts.size()"});
    refused({}, {"reduce_scatter", "counts.size()", "got 0"});
    wrong = counts;
    ++wrong.back();
    refused(wrong, {"reduce_scatter", "counts", "add up", "got more"});
    wrong.back() -= 2;
    refused(wrong, {"reduce_scatter", "counts", "add up",
                    "got " + std::to_string(input.size() - 1)});
    wrong.assign(ranks, std::numeric_limits<std::size_t>::max());
    refused(wrong, {"reduce_scatter", "counts"});
    output.resize(kEach + 1);
    refused(counts, {"reduce_scatter", "output.size()", "3", "got 4"});
  });
}

TEST_P(Arguments, ReduceScatterOutputIsSeparateOrItsPieceOfTheInput) {
  refuses([](Communicator& comm, std::size_t ranks) {
    const std::size_t own = kEach * static_cast<std::size_t>(comm.rank());
    std::vector<float> data(kEach * ranks + 1);
    const View all = View(data).subview(0, data.size() - 1);
    const auto refused_at = [&](std::size_t offset) {
      const View output = View(data).subview(offset, kEach);
      expect_invalid({"reduce_scatter", "overlap"},
                     [&] { comm.reduce_scatter(all, output); });
    };
    refused_at(own + 1);
    if (own > 0) refused_at(own - 1);
    if (own > 0) refused_at(0);
  });
}

// Pieces of even sizes, so that floats begin where a piece does.
TEST_P(Arguments, ReduceScatterFloatOutputMustNotOverlapHalves) {
  refuses([](Communicator& comm, std::size_t ranks) {
    const std::size_t each = kEach + 1;
    Buffer data(2 * each * ranks, DType::kFloat16);
    const View input = data.view().subview(0, each * ranks);
    const std::size_t begin = each * static_cast<std::size_t>(comm.rank());
    const View output(data.view().subview(begin, 1).data(), each,
                      DType::kFloat32);
    expect_invalid({"reduce_scatter", "overlap"},
                   [&] { comm.reduce_scatter(input, output); });
  });
}

TEST_P(Arguments, OnlyHalvesMayBeReducedToAnotherType) {
  refuses([](Communicator& comm, std::size_t ranks) {
    const auto refused = [&](DType from, DType to) {
      const Buffer input(kEach * ranks, from);
      Buffer output(kEach, to);
      expect_invalid(
          {"reduce_scatter", "output", std::string("got ") + to_string(to)},
          [&] { comm.reduce_scatter(input.view(), output.view()); });
    };
    refused(DType::kInt32, DType::kFloat32);
    refused(DType::kInt64, DType::kFloat32);
    refused(DType::kUInt8, DType::kFloat32);
    refused(DType::kFloat64, DType::kFloat32);
    refused(DType::kFloat32, DType::kInt32);
    refused(DType::kFloat32, DType::kFloat64);
    refused(DType::kFloat32, DType::kFloat16);
    refused(DType::kFloat16, DType::kFloat64);
    refused(DType::kFloat16, DType::kBFloat16);
    refused(DType::kBFloat16, DType::kFloat16);
    refused(DType::kBFloat16, DType::kInt32);
  });
}

TEST_P(Arguments, AMaximumIsNotWidened) {
  refuses([](Communicator& comm, std::size_t ranks) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const Buffer input(kEach * ranks, dtype);
      std::vector<float> output(kEach);
      expect_invalid({"reduce_scatter", "op", "got kMax"}, [&] {
        comm.reduce_scatter(input.view(), output, ReduceOp::kMax);
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Arguments, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

TEST(CommunicatorOptions, TimeoutMustBePositive) {
  for (const int timeout : {0, -5}) {
    expect_invalid({"timeout", "> 0", "got " + std::to_string(timeout)}, [&] {
      const auto group =
          make_local_group(2, {.timeout = std::chrono::milliseconds(timeout)});
    });
  }
}

TEST(LocalGroup, NeedsAtLeastOneRank) {
  expect_invalid({"world_size", ">= 1", "got 0"},
                 [] { const auto group = make_local_group(0); });
  expect_invalid({"world_size", ">= 1", "got -2"},
                 [] { run_local_ranks(-2, [](Communicator&) {}); });
}

TEST(Communicator, NeedsATransport) {
  expect_invalid({"transport"}, [] { Communicator comm(nullptr); });
}

}  // namespace
}  // namespace thinwire::comm::arguments_test
