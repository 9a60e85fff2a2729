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

// (group)
class RequireSame : public ::testing::TestWithParam<test::Group> {};
class RequireSameOfTwo : public ::testing::TestWithParam<test::Group> {};
class RequireSameOfThree : public ::testing::TestWithParam<test::Group> {};

TEST_P(RequireSame, AcceptsEqualTextsAtTheCostOfOneGather) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    require_same(comm, "layout", "a 3x4\nb 7\n");
    require_same(comm, "nothing", "");
    EXPECT_EQ(comm.counters().collectives, 2u);
    EXPECT_EQ(comm.counters().bytes_sent,
              16u * static_cast<std::size_t>(comm.size() - 1));
  });
}

// The last rank differs; the others learn of it as well.
TEST_P(RequireSameOfTwo, ShowsTheFirstDifferentLineOnAllRanks) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const int last = comm.size() - 1;
    const std::string text =
        comm.rank() == last ? "a 3x4\nb 8\nc 2\n" : "a 3x4\nb 7\nc 1\n";
    expect_error(ErrorCode::kInvalidArgument,
                 {"parameter layout", "line 2", "\"b 7\" on rank 0",
                  "\"b 8\" on rank " + std::to_string(last)},
                 [&] { require_same(comm, "parameter layout", text); });
    require_same(comm, "the group afterwards", "usable");
  });
}

TEST_P(RequireSameOfTwo, ShowsALineThatOnlyOneRankHas) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const std::string text = comm.rank() == 0 ? "a\nb" : "a";
    expect_error(ErrorCode::kInvalidArgument,
                 {"line 2", "\"b\" on rank 0", "nothing", "on rank 1"},
                 [&] { require_same(comm, "text", text); });
  });
}

TEST_P(RequireSameOfThree, ChoosesTheEarliestLineOfAllRanks) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    const char* const texts[] = {"a\nb\nc", "a\nb\nX", "a\nX\nc"};
    expect_error(ErrorCode::kInvalidArgument,
                 {"line 2", "\"b\" on rank 0", "\"X\" on rank 2"}, [&] {
                   require_same(comm, "text", texts[std::min(comm.rank(), 2)]);
                 });
  });
}

INSTANTIATE_TEST_SUITE_P(All, RequireSame, ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());
// A job of one or two ranks has nothing for these.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RequireSameOfTwo);
INSTANTIATE_TEST_SUITE_P(All, RequireSameOfTwo,
                         ::testing::ValuesIn(test::groups(2)),
                         ::testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RequireSameOfThree);
INSTANTIATE_TEST_SUITE_P(All, RequireSameOfThree,
                         ::testing::ValuesIn(test::groups(3)),
                         ::testing::PrintToStringParamName());

// ---- require_everywhere
class RequireEverywhere : public ::testing::TestWithParam<test::Group> {};
class RequireEverywhereOfTwo : public ::testing::TestWithParam<test::Group> {};
INSTANTIATE_TEST_SUITE_P(All, RequireEverywhere,
                         ::testing::ValuesIn(test::groups()),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(All, RequireEverywhereOfTwo,
                         ::testing::ValuesIn(test::groups(2)),
                         ::testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RequireEverywhereOfTwo);

TEST_P(RequireEverywhere, CostsOneGatherWhereNothingIsThrown) {
  test::run_ranks(GetParam(), [](Communicator& comm) {
    int calls = 0;
    require_everywhere(comm, [&] { ++calls; });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(comm.counters().collectives, 1u);
    EXPECT_EQ(comm.counters().bytes_sent,
              4u * static_cast<std::size_t>(comm.size() - 1));
  });
}

TEST_P(RequireEverywhereOfTwo, ThrowsOnAllRanksWithTheCodeAndCauseOfOne) {
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

TEST_P(RequireEverywhereOfTwo, PassesTheCauseOfTheLowestRankOn) {
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
