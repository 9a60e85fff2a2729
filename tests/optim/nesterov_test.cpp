// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/nesterov.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "optim/states.h"
#include "optim/support.h"
#include "support/errors.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/error.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::test::nesterov {

namespace {

using optim::Nesterov;
using optim::NesterovOptions;

// Also of gradients of 16 bits, which it widens.
TEST(Nesterov, HasTheBitsOfPlainLoops) {
  const ParameterLayout layout = awkward_layout();
  Nesterov rule(layout, {.learning_rate = 0.7, .momentum = 0.6});
  rule.set_learning_rate(1, 0.3);
  ThreadPool pool(2);
  std::vector<float> p = normal(layout.size(), 1);
  std::vector<float> expected = p;
  std::vector<float> u(layout.size());
  std::vector<Half> rounded(layout.size());
  for (std::uint32_t t = 1; t <= 5; ++t) {
    const auto narrow = rounded_to<BFloat16>(normal(layout.size(), 10 + t));
    std::vector<float> grads = normal(layout.size(), 10 + t);
    if (t % 2 == 0)
      std::ranges::transform(narrow, grads.begin(),
                             [](BFloat16 g) { return to_float(g); });
    rule.apply(t,
               {.params = p,
                .grads = t % 2 == 0 ? ConstView(narrow) : ConstView(grads),
                .grad_scale = 0.25f,
                .low_precision = rounded},
               pool);
    for (const Parameter& parameter : layout.parameters())
      for (std::size_t i = parameter.offset;
           i < parameter.offset + parameter.size; ++i) {
        const float rate = parameter.group == 0 ? 0.7f : 0.3f;
        const float y = grads[i] * 0.25f;
        const float decayed = 0.6f * u[i];
        u[i] = decayed + y;
        const float look_ahead = 0.6f * u[i];
        const float direction = y + look_ahead;
        const float change = rate * direction;
        expected[i] = expected[i] - change;
      }
    EXPECT_TRUE(same_bytes(p, expected)) << t;
    EXPECT_TRUE(same_bytes(rule.state("momentum"), u)) << t;
    for (std::size_t i = 0; i < p.size(); ++i)
      EXPECT_EQ(rounded[i].bits, to_half(p[i]).bits);
  }
}

TEST(Nesterov, ContinuesFromItsState) {
  const ParameterLayout layout = small_layout();
  ThreadPool pool(1);
  Nesterov rule(layout, {.momentum = 0.5});
  std::vector<float> p = normal(layout.size(), 1);
  const std::vector<float> grads = normal(layout.size(), 2);
  rule.apply(1, {.params = p, .grads = grads}, pool);
  StateDict state = saved(rule);
  Nesterov resumed(layout, {.momentum = 0.5});
  resumed.adopt(state)();
  EXPECT_TRUE(same_state(saved(resumed), saved(rule)));
  StateDict empty;
  expect_error(ErrorCode::kCorruptCheckpoint, {"momentum"},
               [&] { (void)resumed.adopt(empty); });
}

TEST(Nesterov, NamesOptionsOutOfRange) {
  const auto refused = [](const NesterovOptions& options, const char* text) {
    expect_invalid({text}, [&] { Nesterov(small_layout(), options); });
  };
  refused({.learning_rate = -1}, "learning_rate must be finite and >= 0");
  refused({.momentum = 1}, "momentum must be in [0, 1), got 1");
  Nesterov rule(small_layout(), {});
  expect_invalid({"weight_decay must be 0"},
                 [&] { rule.set_weight_decay(0, 0.1); });
  EXPECT_EQ(rule.weight_decay(0), 0);
}

}  // namespace

}  // namespace thinwire::test::nesterov
