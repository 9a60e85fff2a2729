// SPDX-License-Identifier: Apache-2.0
// Whole steps, as users call them. Gradients of mixed precision are first
// looked through for their norm and for overflow. An echo stands in for the
// other ranks of low-bit optimizers. A row thus has all that a step does on one
// rank, without the network. ZeRO's group is one rank, whose shard is
// everything.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/rows.h"
#include "kernels/pooled_norm.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::apps::bench {

namespace {

constexpr int kRanks = 4;
constexpr double kLossScale = 1024;

Buffer random_gradients(std::size_t elements, DType dtype) {
  Buffer grads(elements, dtype);
  kernels::convert(random_values(elements, 2).view(), grads.view());
  return grads;
}

// A step of an update rule. A model in 16 bits gets its parameters rounded, and
// its gradients are unscaled and clipped.
template <class Rule>
struct RuleWork {
  RuleWork(std::size_t elements, DType grad, DType model)
      : rule(ParameterLayout::of({{"all", {elements}}}),
             {.learning_rate = 1e-4, .weight_decay = 0.01}),
        params(random_values(elements, 1)),
        grads(random_gradients(elements, grad)) {
    if (model != DType::kFloat32) low_precision = Buffer(elements, model);
  }

  void run(ThreadPool& pool) {
    double factor = 0.5;
    if (!low_precision.empty()) {
      const double norm =
          std::sqrt(kernels::sum_of_squares(pool, grads.view())) / kLossScale;
      if (!std::isfinite(norm)) return;  // a step that overflowed is left out
      factor = std::min(1.0, 1 / norm) / kLossScale;
    }
    rule.apply(++step,
               {params.view(), grads.view(), static_cast<float>(factor),
                low_precision.view()},
               pool);
  }

  Rule rule;
  Buffer params;
  Buffer grads;
  Buffer low_precision;
  std::int64_t step = 0;
};

template <class Rule>
Prepare rule_step(DType grads, DType model = DType::kFloat32) {
  return [=](std::size_t elements, ThreadPool& pool) -> Variant {
    auto work = std::make_shared<RuleWork<Rule>>(elements, grads, model);
    return {[work, &pool] { work->run(pool); }};
  };
}

template <class Optimizer>
struct OptimizerWork {
  template <class Options>
  OptimizerWork(std::size_t elements, const Options& options)
      : comm(std::make_unique<EchoTransport>(kRanks)),
        optimizer(comm, ParameterLayout::of({{"all", {elements}}}), options),
        params(random_values(elements, 1)),
        grads(random_values(elements, 2)) {
    run();  // The exact step; it leaves sums behind.
    grads = random_values(elements, 2);
    run();  // The first compressed step, whose momentum is still in floats.
  }

  void run() { optimizer.step(params.view(), grads.view()); }
  void measure() {
    optimizer.early()->forget();
    optimizer.early()->measure(grads.view(), {0, grads.size()});
  }

  comm::Communicator comm;
  Optimizer optimizer;
  Buffer params;
  Buffer grads;
};

template <class Optimizer, class Options>
std::shared_ptr<OptimizerWork<Optimizer>> work_of(std::size_t elements,
                                                  ThreadPool& pool,
                                                  Options options) {
  options.learning_rate = 1e-5;
  options.weight_decay = 0.01;
  options.compression.exchange.num_threads = pool.num_threads();
  return std::make_shared<OptimizerWork<Optimizer>>(elements, options);
}

// Times a step whose norm has been formed.
template <class Work>
Variant step_of(const std::shared_ptr<Work>& work) {
  return {[work] { work->run(); }, [work] { work->measure(); }};
}

// Times steps from the second one after the freeze on.
template <class Optimizer, class Options>
Prepare compressed_step(Options options) {
  options.freeze.step = 1;
  return [options](std::size_t elements, ThreadPool& pool) {
    return step_of(work_of<Optimizer>(elements, pool, options));
  };
}

// Syncs double their distance after every one, up to `most` steps.
std::shared_ptr<OptimizerWork<optim::ZeroOneAdam>> zero_one_work(
    std::size_t elements, ThreadPool& pool, std::int64_t most) {
  return work_of<optim::ZeroOneAdam>(
      elements, pool,
      optim::ZeroOneAdamOptions{.var_freeze_step = 1,
                                .local_step_scaler = 1,
                                .local_step_clipper = most});
}

struct ZeroWork {
  ZeroWork(std::size_t elements, int backwards_per_step,
           const zero::ZeroOptions& options)
      : backwards(backwards_per_step),
        comm(std::make_unique<EchoTransport>(1)),
        params(elements, options.dtype),
        grads(random_gradients(elements, options.dtype)),
        cold(random_values(elements, 1)) {
    kernels::convert(cold.view(), params.view());
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

Prepare adam_step(DType grads, DType model) {
  return rule_step<optim::Adam>(grads, model);
}

Prepare lamb_step() { return rule_step<optim::Lamb>(DType::kFloat32); }

Variant prepare_norm(std::size_t elements, ThreadPool& pool) {
  auto values = std::make_shared<Buffer>(random_values(elements, 3));
  return {[values, &pool] {
    [[maybe_unused]] volatile double sum =
        kernels::sum_of_squares(pool, values->view());
  }};
}

Variant prepare_norm_during_backward(std::size_t elements, ThreadPool& pool) {
  const auto work = work_of<optim::OnebitAdam>(
      elements, pool, optim::OnebitAdamOptions{.freeze = {.step = 1}});
  return {[work] { work->measure(); }};
}

Prepare onebit_adam_step(DType residuals) {
  return compressed_step<optim::OnebitAdam>(
      optim::OnebitAdamOptions{.compression = {.residual_dtype = residuals}});
}

Prepare onebit_lamb_step() {
  return compressed_step<optim::OnebitLamb>(optim::OnebitLambOptions{});
}

// No sync follows.
Variant prepare_local_step(std::size_t elements, ThreadPool& pool) {
  const auto work = zero_one_work(elements, pool, std::int64_t{1} << 40);
  work->run();
  work->run();
  return step_of(work);
}

// Every second step is a sync; the local step before it is not timed.
Variant prepare_sync_step(std::size_t elements, ThreadPool& pool) {
  const auto work = zero_one_work(elements, pool, 2);
  return {[work] { work->run(); },
          [work] {
            work->run();
            work->measure();
          }};
}

// Times step() after gradients were reduced and copied.
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
