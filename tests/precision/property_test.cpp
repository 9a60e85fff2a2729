// SPDX-License-Identifier: Apache-2.0
// Any layout, world, dtype, optimizer and pattern of overflows: nothing hangs,
// and ranks agree on every step, on the loss scale and, wherever they are in
// step, on their parameters (item 38).
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <limits>

#include "precision/support.h"

namespace thinwire::precision {
namespace {

using test::Training;

// Up to 6 parameters, empty ones among them, in up to 2 groups.
ParameterLayout any_layout() {
  const auto sizes =
      *rc::gen::resize(6, rc::gen::container<std::vector<std::size_t>>(
                              rc::gen::inRange<std::size_t>(0, 70)));
  const std::size_t groups =
      sizes.size() < 2 ? 1 : *rc::gen::inRange<std::size_t>(1, 3);
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    specs.push_back({"p" + std::to_string(i), {sizes[i]}, i % groups});
  return ParameterLayout::of(std::move(specs));
}

test::MakeOptimizer any_optimizer(const ParameterLayout& layout) {
  test::TwoStages stages{.groups = layout.num_groups()};
  stages.exchange.max_grad_norm = *rc::gen::element(0.0, 0.5);
  stages.exchange.bucket_elements =
      *rc::gen::element<std::size_t>(1, 33, 1 << 20);
  stages.exchange.verify_every = *rc::gen::inRange<std::int64_t>(0, 3);
  stages.freeze_step = *rc::gen::inRange<std::int64_t>(1, 4);
  stages.var_freeze_step = stages.freeze_step;
  return test::all_optimizers(stages)[*rc::gen::inRange<std::size_t>(0, 5)]
      .make;
}

// One rank's results.
struct Seen {
  std::vector<bool> applied;
  std::vector<double> scales;
  std::vector<Buffer> params;  // after each call, and at the end
  bool rounded = true;
};

constexpr std::int64_t kCalls = 12;

Seen train(comm::Communicator& comm, const ParameterLayout& layout,
           const test::MakeOptimizer& make, DType dtype, DType grad_dtype,
           const std::vector<int>& overflowing) {
  Training run(comm, layout, make,
               // No gradient reaches 16, so that at a scale of 1024 nothing but
               // the NaN overflows.
               {.dtype = dtype,
                .loss_scale = {.initial_scale = 64,
                               .window = 1,
                               .hysteresis = 1,
                               .min_scale = 0x1p-20,
                               .max_scale = 1024}});
  run.grad_dtype = grad_dtype;
  Seen seen;
  for (std::int64_t call = 1; call <= kCalls; ++call) {
    auto grads = test::gradient(layout.size(), call, comm.rank());
    if (overflowing[static_cast<std::size_t>(call - 1)] == comm.rank() &&
        !grads.empty())
      grads[grads.size() / 2] = std::numeric_limits<float>::quiet_NaN();
    seen.applied.push_back(run.step(grads).applied);
    seen.scales.push_back(run.optimizer->loss_scale());
    if (optim::steps_behind(*run.optimizer) == 0)
      seen.params.push_back(test::copied(run.params.view()));
  }
  optim::synchronize(*run.optimizer, run.params.view());
  seen.rounded = run.params_are_rounded_masters();
  seen.params.push_back(test::copied(run.params.view()));
  return seen;
}

RC_GTEST_PROP(AnyTraining, KeepsRanksEqual, ()) {
  const ParameterLayout layout = any_layout();
  const auto world = *rc::gen::inRange(1, 5);
  const DType dtype = *rc::gen::element(DType::kFloat16, DType::kBFloat16);
  const DType grad_dtype =
      *rc::gen::element(DType::kFloat32, DType::kFloat16, DType::kBFloat16);
  const auto make = any_optimizer(layout);
  // The rank that overflows in each call, most often none.
  const auto overflowing = *rc::gen::container<std::vector<int>>(
      kCalls, rc::gen::inRange(0, 3 * world));
  std::vector<Seen> seen(static_cast<std::size_t>(world));
  comm::run_local_ranks(world,
                        [&](comm::Communicator& comm) {
                          seen[static_cast<std::size_t>(comm.rank())] =
                              train(comm, layout, make, dtype, grad_dtype,
                                    overflowing);
                        },
                        {.timeout = std::chrono::seconds(60)});
  for (const Seen& rank : seen) {
    RC_ASSERT(rank.rounded);
    RC_ASSERT(rank.applied == seen[0].applied);
    RC_ASSERT(rank.scales == seen[0].scales);
    RC_ASSERT(rank.params.size() == seen[0].params.size());
    for (std::size_t k = 0; k < rank.params.size(); ++k)
      RC_ASSERT(bool{
          test::same_bytes(rank.params[k].view(), seen[0].params[k].view())});
    if (dtype == DType::kFloat16 && layout.size() > 0)
      for (std::size_t c = 0; c < kCalls; ++c)
        RC_ASSERT(rank.applied[c] == (overflowing[c] >= world));
  }
}

}  // namespace
}  // namespace thinwire::precision
