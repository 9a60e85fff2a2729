// SPDX-License-Identifier: Apache-2.0
// ZeroOptimizer as users call it, in a group of one. Its shard is everything,
// and nothing is sent. The rows time step() after gradients were reduced and
// copied: the check that all are finite, their norm, and the update.
#include <memory>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/rows.h"
#include "kernels/pooled_norm.h"
#include "optim/step_pieces.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::apps::bench {

namespace {

constexpr double kLossScale = 1024;

struct ZeroWork {
  ZeroWork(std::size_t elements, int backwards_per_step,
           const zero::ZeroOptions& options)
      : backwards(backwards_per_step),
        comm(std::make_unique<EchoTransport>(1)),
        params(elements, options.dtype),
        grads(elements, options.dtype),
        cold(random_values(elements, 1)) {
    kernels::convert(cold.view(), params.view());
    kernels::convert(random_values(elements, 2).view(), grads.view());
    // A parameter of one element can be read without reading all of them.
    const auto layout =
        ParameterLayout::of({{"all", {elements - 1}}, {"one", {1}}});
    optimizer = std::make_unique<zero::ZeroOptimizer>(
        comm, layout,
        [](const ParameterLayout& shard) {
          return std::make_unique<optim::Adam>(
              shard,
              optim::AdamOptions{.learning_rate = 1e-5, .weight_decay = 0.01});
        },
        params.view(), options);
  }

  void collect(ThreadPool& pool) {
    const std::size_t most = grads.size() - 1;
    for (int b = 0; b < backwards; ++b) {
      optimizer->gradients().begin(
          {.is_first = b == 0, .is_last = b == backwards - 1});
      optimizer->gradients().collect(1, grads.view().subview(most, 1));
      optimizer->gradients().collect(0, grads.view().subview(0, most));
      optimizer->gradients().end();
    }
    // Waits until all are at their destination.
    (void)optimizer->whole_values().gradient("one");
    // Evicts them from the cache, as in the other rows.
    [[maybe_unused]] volatile double sum =
        kernels::sum_of_squares(pool, cold.view());
  }

  int backwards;
  comm::Communicator comm;
  Buffer params;
  Buffer grads;
  Buffer cold;
  std::unique_ptr<zero::ZeroOptimizer> optimizer;
};

}  // namespace

Prepare zero_step(DType dtype, int backwards) {
  return [=](std::size_t elements, ThreadPool& pool) -> Variant {
    auto work = std::make_shared<ZeroWork>(
        elements, backwards,
        zero::ZeroOptions{
            .stage = 2,
            .dtype = dtype,
            .loss_scale = {.initial_scale = kLossScale, .dynamic = false},
            .exchange = {.max_grad_norm = 1,
                         .num_threads = pool.num_threads()}});
    return {[work] { work->optimizer->step(); },
            [work, &pool] { work->collect(pool); }};
  };
}

}  // namespace thinwire::apps::bench
