// SPDX-License-Identifier: Apache-2.0
// Runs that begin bucket by bucket and may be taken back.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::early_run_test {
namespace {

using kernels::Signs;
using test::Exchange;

class EarlyRun : public ::testing::TestWithParam<std::pair<int, DType>> {};
INSTANTIATE_TEST_SUITE_P(All, EarlyRun,
                         ::testing::Values(std::pair(1, DType::kFloat32),
                                           std::pair(2, DType::kFloat32),
                                           std::pair(3, DType::kBFloat16),
                                           std::pair(8, DType::kFloat32)));

CompressedAllReduceOptions options_of(DType dtype) {
  return {.blocks = {.bucket_elements = 1500}, .residual_dtype = dtype};
}

CompressedAllReduce::Source source_of(const CompressedAllReduce& all,
                                      const std::vector<float>& x) {
  return [&](std::size_t b) {
    return kernels::SignInput{.values = x.data() +
                                        all.layout().blocks()[b].values.offset};
  };
}

CompressedAllReduce::Sink sink_of(const CompressedAllReduce& all,
                                  std::vector<float>& result) {
  return [&](std::size_t b, Signs mean) {
    const Range& at = all.layout().blocks()[b].values;
    kernels::sign_decode(mean, nullptr, result.data() + at.offset, at.size);
  };
}

void expect_same_errors(const CompressedAllReduce& a,
                        const CompressedAllReduce& b) {
  EXPECT_EQ(test::floats_of(a.worker_error()),
            test::floats_of(b.worker_error()));
  EXPECT_EQ(test::floats_of(a.server_error()),
            test::floats_of(b.server_error()));
}

// Dropped after any number of buckets, or accepted: as a run, or as none.
TEST_P(EarlyRun, IsARunIfItIsAcceptedAndElseNone) {
  const auto [world, dtype] = GetParam();
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(world, [&, type = dtype](comm::Communicator& comm) {
    Exchange plain(comm, units, options_of(type));
    CompressedAllReduceOptions options = options_of(type);
    options.runs_early = true;
    options.early_threads = 2;
    Exchange early(comm, units, options);
    const std::size_t size = units.back().end();
    std::vector<float> want(size);
    std::vector<float> got(size);
    for (std::uint32_t t = 1; t <= 6; ++t) {
      const auto rank = static_cast<std::uint32_t>(comm.rank());
      const std::vector<float> wrong = test::layered_values(size, 50 + t);
      early.all.begin_early(source_of(early.all, wrong));
      for (std::size_t k = 0; k < t && early.all.left_early() > 0; ++k)
        early.all.add_early();
      EXPECT_TRUE(early.all.has_early());
      early.all.drop_early();
      EXPECT_FALSE(early.all.has_early());
      expect_same_errors(early.all, plain.all);

      const std::vector<float> x = test::layered_values(size, 8 * t + rank);
      plain.all.run(source_of(plain.all, x), sink_of(plain.all, want));
      early.all.begin_early(source_of(early.all, x));
      while (early.all.left_early() > 0) early.all.add_early();
      early.all.accept_early(sink_of(early.all, got));
      ASSERT_EQ(got, want) << "run " << t;
      for (std::size_t b = 0; b < plain.all.layout().blocks().size(); ++b)
        ASSERT_EQ(early.all.mean(b).scale, plain.all.mean(b).scale);
      expect_same_errors(early.all, plain.all);
      // Both kinds of run may follow each other.
      plain.all.run(source_of(plain.all, x), sink_of(plain.all, want));
      early.all.run(source_of(early.all, x), sink_of(early.all, got));
      ASSERT_EQ(got, want);
    }
  });
}

TEST(EarlyRun, IsThereOnlyWhereItWasAskedFor) {
  const std::vector<Range> units = test::awkward_units();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Exchange plain(comm, units, options_of(DType::kFloat32));
    EXPECT_FALSE(plain.all.has_early());
    test::expect_error(ErrorCode::kFailedPrecondition,
                       {"begin_early()", "runs_early", "got false"},
                       [&] { plain.all.begin_early({}); });
    CompressedAllReduceOptions both = options_of(DType::kFloat32);
    both.runs_early = both.keeps_previous = true;
    test::expect_error(ErrorCode::kInvalidArgument,
                       {"runs_early must be false with", "keeps_previous"},
                       [&] { Exchange(comm, units, both); });
  });
}

}  // namespace
}  // namespace thinwire::exchange::early_run_test
