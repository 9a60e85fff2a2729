// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::comm::agreement_test {
namespace {

using test::expect_error;
using test::expect_invalid;

// (group)
class Agreement : public ::testing::TestWithParam<test::Group> {};
class AgreementOfTwo : public ::testing::TestWithParam<test::Group> {};
class AgreementOfThree : public ::testing::TestWithParam<test::Group> {};
INSTANTIATE_TEST_SUITE_P(All, Agreement, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());
// A job of one or two ranks has nothing for these.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgreementOfTwo);
INSTANTIATE_TEST_SUITE_P(All, AgreementOfTwo,
                         ::testing::ValuesIn(test::groups(2)),
                         ::testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AgreementOfThree);
INSTANTIATE_TEST_SUITE_P(All, AgreementOfThree,
                         ::testing::ValuesIn(test::groups(3)),
                         ::testing::PrintToStringParamName());

TEST_P(Agreement, AcceptsEqualTextsAtTheCostOfOneGather) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    require_same(comm, "layout", "a 3x4\nb 7\n");
    require_same(comm, "nothing", "");
    EXPECT_EQ(comm.counters().collectives, 2u);
    EXPECT_EQ(comm.counters().bytes_sent,
              16u * static_cast<std::size_t>(comm.size() - 1));
  });
}

// The last rank differs; the others learn of it as well.
TEST_P(AgreementOfTwo, ShowsTheFirstDifferentLineOnAllRanks) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const int last = comm.size() - 1;
    const std::string text =
        comm.rank() == last ? "a 3x4\nb 8\nc 2\n" : "a 3x4\nb 7\nc 1\n";
    expect_invalid({"parameter layout", "line 2", "\"b 7\" on rank 0",
                    "\"b 8\" on rank " + std::to_string(last)},
                   [&] { require_same(comm, "parameter layout", text); });
    require_same(comm, "the group afterwards", "usable");
  });
}

TEST_P(AgreementOfTwo, ShowsALineThatOnlyOneRankHas) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const std::string text = comm.rank() == 0 ? "a\nb" : "a";
    expect_invalid({"line 2", "\"b\" on rank 0", "nothing", "on rank 1"},
                   [&] { require_same(comm, "text", text); });
  });
}

TEST_P(AgreementOfThree, ChoosesTheEarliestLineOfAllRanks) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const char* const texts[] = {"a\nb\nc", "a\nb\nX", "a\nX\nc"};
    expect_invalid({"line 2", "\"b\" on rank 0", "\"X\" on rank 2"}, [&] {
      require_same(comm, "text", texts[std::min(comm.rank(), 2)]);
    });
  });
}

// ---- require_everywhere

TEST_P(Agreement, CostsOneGatherIfNothingIsThrown) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    int calls = 0;
    require_everywhere(comm, [&] { ++calls; });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(comm.counters().collectives, 1u);
    EXPECT_EQ(comm.counters().bytes_sent,
              4u * static_cast<std::size_t>(comm.size() - 1));
  });
}

TEST_P(AgreementOfTwo, ThrowsOnAllRanksWithTheCodeAndCauseOfOne) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const int last = comm.size() - 1;
    for (int i = 0; i < 2; ++i)  // the communicator can be used after it
      expect_error(ErrorCode::kCorruptCheckpoint,
                   {comm.rank() == last
                        ? std::string("torn")
                        : "rank " + std::to_string(last) + " gave up: torn"},
                   [&] {
                     require_everywhere(comm, [&] {
                       if (comm.rank() == last)
                         throw Error(ErrorCode::kCorruptCheckpoint, "torn");
                     });
                   });
  });
}

TEST_P(AgreementOfTwo, PassesOnTheCauseOfTheLowestRank) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const auto check = [&] {
      if (comm.rank() == 0) throw std::runtime_error("disk full");
      if (comm.rank() == 1) throw Error(ErrorCode::kUnavailable, "no disk");
    };
    if (comm.rank() == 0) {
      EXPECT_THROW(require_everywhere(comm, check), std::runtime_error);
    } else if (comm.rank() == 1) {
      expect_error(ErrorCode::kUnavailable, {"no disk"},
                   [&] { require_everywhere(comm, check); });
    } else {
      expect_error(ErrorCode::kFailedPrecondition,
                   {"rank 0 gave up: disk full"},
                   [&] { require_everywhere(comm, check); });
    }
  });
}

}  // namespace
}  // namespace thinwire::comm::agreement_test
