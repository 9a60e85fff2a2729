// SPDX-License-Identifier: Apache-2.0
// Single gradients that are finite and far too large, under ZeRO.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "optim/support.h"
#include "zero/support.h"

namespace thinwire::zero::large_gradients_test {
namespace {

struct Case {
  int world = 1;
  int stage = 1;
  double max_grad_norm = 0;
};

class ZeroLargeGradients : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, ZeroLargeGradients,
                         ::testing::Values(Case{1, 1, 0}, Case{2, 1, 0},
                                           Case{2, 2, 1}, Case{3, 2, 0}),
                         [](const auto& tested) {
                           return fmt::format(
                               "stage{}_w{}{}", tested.param.stage,
                               tested.param.world,
                               tested.param.max_grad_norm > 0 ? "_clipped"
                                                              : "");
                         });

TEST_P(ZeroLargeGradients, LeaveParametersFinite) {
  const ParameterLayout layout =
      ParameterLayout::of({{"wide", {1100}}, {"narrow", {7}}, {"one", {}}});
  const ZeroOptions options{
      .stage = GetParam().stage,
      .exchange = {.max_grad_norm = GetParam().max_grad_norm}};
  for (const float size : {1e6f, 1e20f, 1e38f})
    comm::run_local_ranks(GetParam().world, [&](comm::Communicator& comm) {
      test::ZeroRun run(comm, layout, test::adam_rule(), options);
      for (std::int64_t t = 1; t <= 8; ++t) {
        auto grads = test::gradient(layout.size(), t, comm.rank());
        if (t == 3 && comm.rank() == comm.size() - 1) {
          grads[5] = size;
          grads[1102] = -size;
        }
        ASSERT_TRUE(run.step(grads).applied) << size << " in step " << t;
        for (const float p : run.masters())
          ASSERT_TRUE(std::isfinite(p)) << size << " after step " << t;
      }
    });
}

}  // namespace
}  // namespace thinwire::zero::large_gradients_test
