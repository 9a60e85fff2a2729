// SPDX-License-Identifier: Apache-2.0
// The ways in which gradients are handed over to a ZeroOptimizer.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::test {

/// All at once, half of the buckets before the rest, or parameter by parameter.
enum class Handed { kWhole, kEarly, kForwards, kBackwards, kShuffled };

struct Way {
  int stage = 1;
  Handed handed = Handed::kWhole;
  std::size_t bucket = 3000;
  int threads = 1;
  bool overlap = true;
};

/// One backward, parameter by parameter.
inline void hand_over(zero::ZeroOptimizer& optimizer,
                      const ParameterLayout& layout, ConstView grads,
                      Handed handed, unsigned seed,
                      exchange::Backward which = {}) {
  const auto parameters = layout.parameters();
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (handed == Handed::kBackwards) std::ranges::reverse(order);
  if (handed == Handed::kShuffled)
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  optimizer.gradients().begin(which);
  for (const std::size_t i : order)
    optimizer.gradients().collect(
        i, grads.subview(parameters[i].offset, parameters[i].size));
  optimizer.gradients().end();
}

/// One backward, and its step.
inline optim::StepReport step(zero::ZeroOptimizer& optimizer,
                              const ParameterLayout& layout, View params,
                              View grads, Handed handed, unsigned seed) {
  if (handed != Handed::kWhole && handed != Handed::kEarly) {
    hand_over(optimizer, layout, grads, handed, seed);
    return optimizer.step();
  }
  const auto buckets = optimizer.gradients().buckets();
  if (handed == Handed::kEarly)
    for (std::size_t b = buckets.size(); b-- > buckets.size() / 2;)
      optimizer.early()->reduce(grads, buckets[b]);
  return optimizer.step(params, grads);
}

}  // namespace thinwire::test
