// SPDX-License-Identifier: Apache-2.0
// Optimizers as users call them; an echo stands in for the three other ranks. A
// row has all that a step does on one rank, without the network. The norm is
// formed during backward and has a row of its own.
#include <cstdint>
#include <memory>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/rows.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::apps::bench {

namespace {

constexpr int kWorld = 4;

template <class Optimizer>
struct OptimizerWork {
  template <class Options>
  OptimizerWork(std::size_t elements, const Options& options)
      : comm(std::make_unique<EchoTransport>(kWorld)),
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

}  // namespace

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

// The interval between syncs doubles after every step, so no sync follows.
Variant prepare_local_step(std::size_t elements, ThreadPool& pool) {
  const auto work = work_of<optim::ZeroOneAdam>(
      elements, pool,
      optim::ZeroOneAdamOptions{.var_freeze_step = 1,
                                .local_step_scaler = 1,
                                .local_step_clipper = std::int64_t{1} << 40});
  work->run();
  work->run();
  return step_of(work);
}

// Every second step is a sync; the local step before it is not timed.
Variant prepare_sync_step(std::size_t elements, ThreadPool& pool) {
  const auto work = work_of<optim::ZeroOneAdam>(
      elements, pool,
      optim::ZeroOneAdamOptions{.var_freeze_step = 1,
                                .local_step_scaler = 1,
                                .local_step_clipper = 2});
  return {[work] { work->run(); },
          [work] {
            work->run();
            work->measure();
          }};
}

}  // namespace thinwire::apps::bench
