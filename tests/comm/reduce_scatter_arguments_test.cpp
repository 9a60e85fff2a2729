// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/ranks.h"
#include "thinwire/core/buffer.h"

namespace thinwire::comm::reduce_scatter_arguments_test {
namespace {

using test::expect_error;

using Counts = std::vector<std::size_t>;

constexpr auto kInvalid = ErrorCode::kInvalidArgument;

// (group): wrong arguments are refused before anything is sent.
class ReduceScatterArguments : public ::testing::TestWithParam<test::Group> {
 protected:
  static constexpr std::size_t kEach = 3;

  static void refuses(const std::function<void(Communicator&, const Counts&,
                                               std::size_t own)>& calls) {
    test::run_ranks(GetParam(), [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      calls(comm, Counts(static_cast<std::size_t>(comm.size()), kEach),
            rank * kEach);
      EXPECT_EQ(comm.counters().collectives, 0u);
      comm.barrier();
    });
  }
};

TEST_P(ReduceScatterArguments, CountsMustNameEveryRankAndAddUp) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t) {
    std::vector<float> input(kEach * counts.size());
    std::vector<float> output(kEach);
    const auto call = [&](const Counts& wrong) {
      return [&, wrong] { comm.reduce_scatter(input, output, wrong); };
    };
    Counts wrong = counts;
    wrong.push_back(0);
    expect_error(kInvalid, {"reduce_scatter", "counts.size()"}, call(wrong));
    expect_error(kInvalid, {"reduce_scatter", "counts.size()", "got 0"},
                 call({}));
    wrong = counts;
    ++wrong.back();
    expect_error(kInvalid, {"reduce_scatter", "counts", "add up", "got more"},
                 call(wrong));
    wrong.back() -= 2;
    expect_error(kInvalid,
                 {"reduce_scatter", "counts", "add up",
                  "got " + std::to_string(input.size() - 1)},
                 call(wrong));
    wrong.assign(wrong.size(), std::numeric_limits<std::size_t>::max());
    expect_error(kInvalid, {"reduce_scatter", "counts"}, call(wrong));
    output.resize(kEach + 1);
    expect_error(kInvalid, {"reduce_scatter", "output.size()", "3", "got 4"},
                 call(counts));
    expect_error(kInvalid, {"reduce_scatter", "input.size()"},
                 [&] { comm.reduce_scatter(input, output); });
  });
}

TEST_P(ReduceScatterArguments, OutputMustBeApartOrItsOwnPlaceInInput) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t own) {
    std::vector<float> data(kEach * counts.size() + 1);
    const View all = View(data).subview(0, data.size() - 1);
    const auto refused_at = [&](std::size_t offset) {
      const View output = View(data).subview(offset, kEach);
      expect_error(kInvalid, {"reduce_scatter", "overlap"},
                   [&] { comm.reduce_scatter(all, output, counts); });
      expect_error(kInvalid, {"reduce_scatter", "overlap"},
                   [&] { comm.reduce_scatter(all, output); });
    };
    refused_at(own + 1);
    if (own > 0) refused_at(own - 1);
    if (own > 0) refused_at(0);
  });
}

TEST_P(ReduceScatterArguments, AFloatOutputMustNotOverlapHalves) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t own) {
    // Of even sizes, so that floats begin where a piece does.
    Counts even = counts;
    for (std::size_t& count : even) count += 1;
    const std::size_t size = (kEach + 1) * counts.size();
    Buffer data(2 * size, DType::kFloat16);
    const View input = data.view().subview(0, size);
    const std::size_t begin = own / kEach * (kEach + 1);
    const View output(data.view().subview(begin, 1).data(), kEach + 1,
                      DType::kFloat32);
    expect_error(kInvalid, {"reduce_scatter", "overlap"},
                 [&] { comm.reduce_scatter(input, output, even); });
    expect_error(kInvalid, {"reduce_scatter", "overlap"},
                 [&] { comm.reduce_scatter(input, output); });
  });
}

TEST_P(ReduceScatterArguments, OnlyHalvesHaveAnotherOutput) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t) {
    const auto refused = [&](DType from, DType to) {
      const Buffer input(kEach * counts.size(), from);
      Buffer output(kEach, to);
      const auto given = std::string("got ") + to_string(to);
      expect_error(kInvalid, {"reduce_scatter", "output", given}, [&] {
        comm.reduce_scatter(input.view(), output.view(), counts);
      });
      expect_error(kInvalid, {"reduce_scatter", "output", given},
                   [&] { comm.reduce_scatter(input.view(), output.view()); });
    };
    refused(DType::kInt32, DType::kFloat32);
    refused(DType::kInt64, DType::kFloat32);
    refused(DType::kUInt8, DType::kFloat32);
    refused(DType::kFloat64, DType::kFloat32);
    refused(DType::kFloat32, DType::kFloat64);
    refused(DType::kFloat32, DType::kFloat16);
    refused(DType::kFloat16, DType::kFloat64);
    refused(DType::kFloat16, DType::kBFloat16);
    refused(DType::kBFloat16, DType::kFloat16);
    refused(DType::kBFloat16, DType::kInt32);
  });
}

TEST_P(ReduceScatterArguments, AMaximumIsNotWidened) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const Buffer input(kEach * counts.size(), dtype);
      std::vector<float> output(kEach);
      expect_error(kInvalid, {"reduce_scatter", "op", "got kMax"}, [&] {
        comm.reduce_scatter(input.view(), output, counts, ReduceOp::kMax);
      });
    }
  });
}

TEST_P(ReduceScatterArguments, AMeanIsOfFloats) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t) {
    const std::vector<std::int32_t> input(kEach * counts.size());
    std::vector<std::int32_t> output(kEach);
    expect_error(kInvalid, {"reduce_scatter", "kMean", "got int32"}, [&] {
      comm.reduce_scatter(input, output, counts, ReduceOp::kMean);
    });
  });
}

TEST_P(ReduceScatterArguments, MemoryMustNotBeNull) {
  refuses([](Communicator& comm, const Counts& counts, std::size_t) {
    std::vector<float> input(kEach * counts.size());
    std::vector<float> output(kEach);
    expect_error(kInvalid, {"reduce_scatter", "input", "null"}, [&] {
      const ConstView null(nullptr, input.size(), DType::kFloat32);
      comm.reduce_scatter(null, output, counts);
    });
    expect_error(kInvalid, {"reduce_scatter", "output", "null"}, [&] {
      const View null(nullptr, kEach, DType::kFloat32);
      comm.reduce_scatter(input, null, counts);
    });
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReduceScatterArguments,
                         ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace thinwire::comm::reduce_scatter_arguments_test
