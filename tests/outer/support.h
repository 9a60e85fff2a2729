// SPDX-License-Identifier: Apache-2.0
// What tests of the outer loop share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optim/other_ranks.h"
#include "optim/support.h"
#include "thinwire/optim/nesterov.h"
#include "thinwire/outer/outer_loop.h"

namespace thinwire::test::outer_loop {

using Floats = std::vector<float>;

inline outer::MakeInner inner(const MakeOptimizer& make,
                              const ParameterLayout& layout) {
  return [=](comm::Communicator& alone) { return make(alone, layout); };
}

inline outer::MakeInner adam_inside(const ParameterLayout& layout,
                                    optim::ExchangeOptions exchange = {}) {
  return inner(
      exact_adam({.learning_rate = 1e-2, .weight_decay = 0.01}, exchange),
      layout);
}

inline outer::MakeInner onebit_inside(const ParameterLayout& layout,
                                      std::int64_t freeze_step,
                                      optim::ExchangeOptions exchange = {}) {
  return inner(onebit_adam({.learning_rate = 1e-2,
                            .freeze = {.step = freeze_step},
                            .compression = {.exchange = exchange}}),
               layout);
}

// An optimizer that subtracts learning_rate times the gradient.
inline outer::MakeInner sgd_inside(const ParameterLayout& layout,
                                   double learning_rate) {
  return [=](comm::Communicator& alone) {
    return std::make_unique<optim::DataParallel>(
        alone,
        std::make_unique<optim::Nesterov>(
            layout, optim::NesterovOptions{.learning_rate = learning_rate}));
  };
}

/// One rank of an outer loop around Adam, and its parameters.
struct LoopRun {
  LoopRun(comm::Communicator& c, const outer::OuterOptions& options,
          const optim::ExchangeOptions& exchange = {},
          ParameterLayout of = small_layout())
      : comm(c),
        layout(std::move(of)),
        optimizer(c, layout, adam_inside(layout), options, exchange) {}

  [[nodiscard]] Floats gradient(std::int64_t t) const {
    return test::gradient(layout.size(), t, comm.rank());
  }
  optim::StepReport step(std::int64_t t) {
    return step_of(optimizer, params, t, comm.rank());
  }
  optim::StepReport step(Floats grads) { return optimizer.step(params, grads); }
  [[nodiscard]] ConstView exchanged() const {
    return optim::exchanged_params(optimizer, params);
  }

  comm::Communicator& comm;
  ParameterLayout layout;
  outer::OuterLoop optimizer;
  Floats params = normal(layout.size(), 3);
};

inline std::vector<Floats> gradients(const ParameterLayout& layout,
                                     std::int64_t step, int world) {
  std::vector<Floats> all;
  for (int r = 0; r < world; ++r)
    all.push_back(test::gradient(layout.size(), step, r));
  return all;
}

/// The owners' exact values, of the states of all ranks.
inline Floats exact_values(const ParameterLayout& layout,
                           const std::vector<Saved>& saved) {
  Floats exact(layout.size());
  for (const Saved& of_rank : saved) {
    std::size_t at = 0;
    for (const Range& range : of_rank.what.find("outer.masters")->ranges)
      for (std::size_t i = range.offset; i < range.end(); ++i)
        exact[i] = of_rank.values.array("outer.masters").as<float>()[at++];
  }
  return exact;
}

}  // namespace thinwire::test::outer_loop
