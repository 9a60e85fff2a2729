// SPDX-License-Identifier: Apache-2.0
// Variables that an optimizer's loops go by are looked at when it is made, on
// every rank, and not in the middle of its first step.
#include <gtest/gtest.h>

#include <atomic>

#include "optim/support.h"
#include "support/environment.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::optim::environment_test {
namespace {

void refused_on_every_rank(const test::MakeOptimizer& make,
                           const char* variable) {
  std::atomic<int> refusals = 0;
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    test::expect_error(ErrorCode::kInvalidArgument, {variable, "'fast'"}, [&] {
      const auto optimizer = make(comm, test::small_layout());
    });
    ++refusals;
  });
  EXPECT_EQ(refusals, 3);
}

TEST(Environment, IsRefusedOnEveryRankWhenAnOptimizerIsMade) {
  for (const char* variable : {"THINWIRE_PREFETCH", "THINWIRE_NUM_THREADS"}) {
    const test::ScopedVariable bad(variable, "fast");
    refused_on_every_rank(test::exact_adam({}), variable);
    refused_on_every_rank(test::onebit_adam({}), variable);
  }
}

}  // namespace
}  // namespace thinwire::optim::environment_test
