// SPDX-License-Identifier: Apache-2.0
// deepspeed::ZeroOptimizer against a plain model of what it reproduces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "deepspeed/plain_zero.h"
#include "support/converted.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"

namespace thinwire::deepspeed::zero_model_test {
namespace {

using test::PlainZero;
using test::rounded;

constexpr int kSteps = 5;

// Group 1 leaves most slices of it empty, and slices cut parameters.
ParameterLayout layout() {
  return ParameterLayout::of({{"three", {3}, 0},
                              {"empty", {0}, 0},
                              {"scalar", {}, 0},
                              {"one", {1}, 1},
                              {"wide", {5, 7}, 0},
                              {"last", {4}, 0}});
}

struct Case {
  int world = 1;
  DType dtype = DType::kFloat32;
  int stage = 1;
  int variant = 0;  // bits: what is switched over

  [[nodiscard]] bool has(int bit) const { return (variant >> bit & 1) != 0; }

  [[nodiscard]] ZeroOptions options() const {
    ZeroOptions o{
        .stage = stage,
        .dtype = dtype,
        .loss_scale = {.initial_scale = 64, .window = 2, .hysteresis = 1},
        .accumulation_dtype = has(3) ? DType::kFloat32 : dtype,
        .round_robin = has(0),
        .reduce_scatter = !has(1)};
    o.exchange.max_grad_norm = has(2) ? 0 : 3;
    if (has(3)) o.communication_dtype = DType::kFloat32;
    return o;
  }
  [[nodiscard]] optim::AdamOptions rule() const {
    return {.learning_rate = 0.01,
            .weight_decay = 0.1,
            .decoupled_decay = has(1) == has(2),
            .groups = {{}, {.learning_rate = 0.02, .weight_decay = 0.0}}};
  }
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << to_string(c.dtype) << "_stage" << c.stage << "_w" << c.world;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 3, 4})
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      for (const int stage : {1, 2}) all.push_back({world, dtype, stage});
  return all;
}

// Returns every rank's gradients of backward `b`, times `scale`. One overflows.
PlainZero::Grads grads_of(const Case& c, int t, int b, double scale) {
  PlainZero::Grads all;
  for (int r = 0; r < c.world; ++r) {
    const auto seed = static_cast<std::uint32_t>(100 * t + 10 * b + r);
    std::vector<float> own = test::normal(layout().size(), seed);
    for (float& g : own) g *= static_cast<float>(scale);
    if (t == 1 && b == 0 && r == c.world - 1)
      own[20] = std::numeric_limits<float>::infinity();
    for (float& g : own) g = rounded(g, c.dtype);
    all.push_back(own);
  }
  return all;
}

std::vector<float> start(const Case& c) {
  std::vector<float> params = test::normal(layout().size(), 7);
  for (float& p : params) p = rounded(p, c.dtype);
  return params;
}

class DeepSpeedZeroModel : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, DeepSpeedZeroModel, ::testing::ValuesIn(cases()),
                         ::testing::PrintToStringParamName());

void collect(ZeroOptimizer& optimizer, const std::vector<float>& grads,
             exchange::Backward which) {
  const ParameterLayout all = layout();
  optimizer.gradients().begin(which);
  for (std::size_t p = all.parameters().size(); p-- > 0;) {
    const Parameter& parameter = all.parameters()[p];
    const Buffer gradient = test::converted(
        std::span(grads).subspan(parameter.offset, parameter.size),
        optimizer.options().dtype);
    optimizer.gradients().collect(p, gradient.view());
  }
  optimizer.gradients().end();
}

void compare(const Case& c, comm::Communicator& comm) {
  SCOPED_TRACE(fmt::format("variant {}", c.variant));
  PlainZero plain(c.world, layout(), c.rule(), c.options(), start(c));
  Buffer params = test::converted(start(c), c.dtype);
  const auto made = [&] {
    return std::make_unique<ZeroOptimizer>(comm, layout(), c.rule(),
                                           params.view(), c.options());
  };
  auto own = made();
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (int t = 0; t < kSteps; ++t) {
    if (t == 3 && c.has(0)) {  // goes on from its state
      const StateDict state = copy_of(own->state());
      own = made();
      own->load_state_dict(state);
    }
    ZeroOptimizer& optimizer = *own;
    ASSERT_EQ(optimizer.loss_scale(), plain.loss_scale()) << t;
    std::vector<PlainZero::Grads> backwards;
    const int count = 1 + t % 3;
    const bool is_whole = t == 3;  // gradients of one backward, all at once
    for (int b = 0; b < count; ++b) {
      backwards.push_back(grads_of(c, t, b, plain.loss_scale()));
      if (!is_whole)
        collect(optimizer, backwards.back()[rank],
                {.is_first = b == 0, .is_last = b + 1 == count});
    }
    Buffer together = test::converted(backwards[0][rank], c.dtype);
    const optim::StepReport report =
        is_whole ? optimizer.step(params.view(), together.view())
                 : optimizer.step();
    ASSERT_EQ(report.applied, plain.step(backwards)) << t;
    if (report.applied) {
      EXPECT_EQ(report.grad_norm, plain.reported_norm) << t;
    }
    const ParameterLayout all = layout();
    for (const Parameter& p : all.parameters()) {
      const auto want = [&](const std::vector<float>& whole) {
        return std::span(whole).subspan(p.offset, p.size);
      };
      const auto same = [&](const std::vector<float>& got,
                            const std::vector<float>& whole) {
        EXPECT_TRUE(test::same_bits(std::span<const float>(got), want(whole)))
            << p.name << " at step " << t;
      };
      same(optimizer.whole_values().parameter(p.name), plain.masters);
      same(optimizer.whole_values().state(p.name, "exp_avg"), plain.exp_avg);
      same(optimizer.whole_values().state(p.name, "exp_avg_sq"),
           plain.exp_avg_sq);
    }
    const std::vector<float> now = test::floats_of(params.view());
    for (std::size_t i = 0; i < now.size(); ++i)
      ASSERT_EQ(now[i], rounded(plain.masters[i], c.dtype)) << i;
  }
}

TEST_P(DeepSpeedZeroModel, HasTheBitsOfTheNaiveModel) {
  Case c = GetParam();
  for (c.variant = 0; c.variant < 16; ++c.variant)
    test::run_ranks("local", c.world,
                    [&](comm::Communicator& comm) { compare(c, comm); });
}

}  // namespace
}  // namespace thinwire::deepspeed::zero_model_test
