// SPDX-License-Identifier: Apache-2.0
// What mean() and previous_mean() are before, during and after a run.
#include <gtest/gtest.h>

#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::previous_mean_test {
namespace {

using kernels::Signs;
using test::Exchange;

constexpr std::size_t kSteps = 4;

// A block's result, copied out of the records.
struct Result {
  float scale = 0;
  std::vector<std::uint32_t> words;
  bool operator==(const Result&) const = default;
};

Result copy_of(const BlockLayout& layout, std::size_t block, Signs signs) {
  const std::size_t size = layout.blocks()[block].residual.size;
  return {signs.scale, {signs.words, signs.words + kernels::sign_words(size)}};
}

std::vector<Result> zeros(const BlockLayout& layout) {
  std::vector<Result> results;
  for (const Block& block : layout.blocks())
    results.push_back({0, std::vector<std::uint32_t>(
                              kernels::sign_words(block.residual.size))});
  return results;
}

// The results of one run, whose Source calls asked(block).
template <class Asked>
std::vector<Result> run(Exchange& exchange, std::uint32_t seed, Asked asked) {
  const BlockLayout& layout = exchange.all.layout();
  const std::vector<Range> units = test::awkward_units();
  const std::vector<float> values =
      test::layered_values(units.back().end(), seed);
  std::vector<Result> results(layout.blocks().size());
  exchange.all.run(
      [&](std::size_t b) {
        asked(b);
        return kernels::SignInput{.values = values.data() +
                                            layout.blocks()[b].values.offset};
      },
      [&](std::size_t b, Signs mean) {
        results[b] = copy_of(layout, b, mean);
      });
  return results;
}

class KeepsPrevious : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, KeepsPrevious, ::testing::Bool());

TEST_P(KeepsPrevious, ASourceReadsTheLastResultOfItsBlock) {
  const CompressedAllReduceOptions options{.blocks = {.bucket_elements = 1500},
                                           .keeps_previous = GetParam()};
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(comm, test::awkward_units(), options, /*threads=*/2);
    const BlockLayout& layout = exchange.all.layout();
    std::vector<Result> last = zeros(layout);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      last = run(exchange, seed, [&](std::size_t b) {
        EXPECT_EQ(copy_of(layout, b, exchange.all.mean(b)), last[b]) << b;
      });
      for (std::size_t b = 0; b < last.size(); ++b)
        EXPECT_EQ(copy_of(layout, b, exchange.all.mean(b)), last[b]) << b;
    }
  });
}

TEST(PreviousMean, IsTheResultOfTheRunBefore) {
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(
        comm, test::awkward_units(),
        {.blocks = {.bucket_elements = 1500}, .keeps_previous = true},
        /*threads=*/2);
    const BlockLayout& layout = exchange.all.layout();
    std::vector<Result> last = zeros(layout);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      // The words of the last result stay where they are for a whole run.
      std::vector<Signs> held;
      for (std::size_t b = 0; b < last.size(); ++b)
        held.push_back(exchange.all.mean(b));
      const std::vector<Result> next = run(exchange, seed, [&](std::size_t b) {
        EXPECT_EQ(copy_of(layout, b, exchange.all.previous_mean(b)), last[b]);
      });
      for (std::size_t b = 0; b < last.size(); ++b) {
        EXPECT_EQ(copy_of(layout, b, exchange.all.previous_mean(b)), last[b]);
        EXPECT_EQ(copy_of(layout, b, held[b]), last[b]);
      }
      last = next;
    }
  });
}

TEST(PreviousMean, ChangesNoResult) {
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange with(comm, test::awkward_units(), {.keeps_previous = true});
    Exchange without(comm, test::awkward_units());
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      const auto nothing = [](std::size_t) {};
      EXPECT_EQ(run(with, seed, nothing), run(without, seed, nothing));
    }
  });
}

TEST(PreviousMean, IsRefusedWhereItIsNotKept) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Exchange exchange(comm, test::awkward_units());
    test::expect_error(ErrorCode::kFailedPrecondition, {"keeps_previous"},
                       [&] { (void)exchange.all.previous_mean(0); });
  });
}

}  // namespace
}  // namespace thinwire::exchange::previous_mean_test
