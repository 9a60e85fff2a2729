// SPDX-License-Identifier: Apache-2.0
// ZeroOptimizer as users call it, in a group of one: its shard is everything,
// and nothing travels. Timed is step() of gradients that are reduced and where
// they are to be: is every one finite, how long are they, and the update.
#include <memory>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/idle_copies.h"
#include "apps/thinwire/bench/rows.h"
#include "optim/exact_exchange.h"
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
    // A parameter of one element can be read without reading all.
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
    // Waits until all are where they are to be.
    (void)optimizer->whole_values().gradient("one");
    // And none is in the cache, as in the other rows.
    [[maybe_unused]] volatile double sum =
        optim::sum_of_squares(pool, cold.view());
  }

  int backwards;
  comm::Communicator comm;
  Buffer params;
  Buffer grads;
  Buffer cold;
  std::unique_ptr<zero::ZeroOptimizer> optimizer;
};

Variant prepare(std::size_t elements, ThreadPool& pool, int backwards,
                zero::ZeroOptions options) {
  options.stage = 2;
  options.loss_scale = {.initial_scale = kLossScale, .dynamic = false};
  options.exchange.max_grad_norm = 1;
  options.exchange.num_threads = pool.num_threads();
  auto work = std::make_shared<ZeroWork>(elements, backwards, options);
  return {[work] { work->optimizer->step(); },
          [work, &pool] { work->collect(pool); }};
}

}  // namespace

Variant prepare_zero_fp16(std::size_t n, ThreadPool& pool) {
  return prepare(n, pool, 1, {.dtype = DType::kFloat16});
}

Variant prepare_zero_bf16(std::size_t n, ThreadPool& pool) {
  return prepare(n, pool, 1, {.dtype = DType::kBFloat16});
}

Variant prepare_zero_accumulated(std::size_t n, ThreadPool& pool) {
  return prepare(n, pool, 2, {.dtype = DType::kFloat16});
}

// Gradients come to host memory before the step, parameters stay there.
Variant prepare_host_step(std::size_t n, ThreadPool& pool) {
  auto bus = std::make_shared<IdleCopies>();
  const Variant whole =
      prepare(n, pool, 1,
              {.dtype = DType::kFloat16, .offload = true, .copy_engine = bus});
  return {whole.run, [bus, before = whole.before] {
            bus->copies = true;
            before();
            bus->copies = false;
          }};
}

// Parameters are copied as well, on a thread beside those of the pool.
Variant prepare_offloaded_step(std::size_t n, ThreadPool& pool) {
  return prepare(n, pool, 1, {.dtype = DType::kFloat16, .offload = true});
}

}  // namespace thinwire::apps::bench
