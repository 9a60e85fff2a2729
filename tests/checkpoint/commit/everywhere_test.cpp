// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>

#include "checkpoint/commit/root.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::checkpoint::everywhere_test {
namespace {

using test::expect_error;

TEST(Everywhere, TheLowestRanksErrorIsThrownOnAll) {
  for (const int world : {1, 2, 3, 4}) {
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      const int last = world - 1;
      const std::string rank = std::to_string(last);
      expect_error(ErrorCode::kUnavailable,
                   {"rank " + rank + ": no disk on " + rank}, [&] {
                     everywhere(comm, [&] {
                       if (comm.rank() == last)
                         throw Error(ErrorCode::kUnavailable,
                                     "no disk on " + rank);
                     });
                   });
      expect_error(ErrorCode::kFailedPrecondition, {"rank 0: 0"}, [&] {
        everywhere(comm, [&] {
          throw std::runtime_error(std::to_string(comm.rank()));
        });
      });
      int calls = 0;
      everywhere(comm, [&] { ++calls; });
      EXPECT_EQ(calls, 1);
    });
  }
}

TEST(Everywhere, TextsOfAnyLengthReachAllRanks) {
  for (const int world : {1, 2, 3}) {
    for (const std::size_t size : {0, 1, 1025}) {
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        const auto text = [&](int rank) {
          return std::string(size * static_cast<std::size_t>(rank + 1),
                             static_cast<char>('a' + rank));
        };
        EXPECT_EQ(broadcast_text(comm, text(comm.rank())), text(0));
        const auto all = gather_texts(comm, text(comm.rank()));
        ASSERT_EQ(all.size(), static_cast<std::size_t>(world));
        for (int rank = 0; rank < world; ++rank)
          EXPECT_EQ(all[static_cast<std::size_t>(rank)], text(rank));
      });
    }
  }
}

TEST(RandomId, IsNew) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(random_id());
  EXPECT_EQ(ids.size(), 100U);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 32U);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::everywhere_test
