// SPDX-License-Identifier: Apache-2.0
// Arguments that the constructor refuses, and gradients that end training.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "optim/states.h"
#include "support/errors.h"
#include "zero/support.h"

namespace thinwire::zero::construction_test {
namespace {

using test::expect_error;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

constexpr auto kArgument = ErrorCode::kInvalidArgument;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ZeroConstruction, OptionsHaveRanges) {
  const auto refused = [](std::string_view field, const ZeroOptions& options) {
    expect_error(kArgument, {field}, [&] { options.validate(); });
  };
  for (const int stage : {-1, 0, 3}) refused("stage", {.stage = stage});
  for (const DType dtype : {DType::kFloat64, DType::kInt64, DType::kUInt8}) {
    refused("dtype", {.dtype = dtype});
    refused("master_dtype", {.master_dtype = dtype});
    refused("accumulation_dtype", {.accumulation_dtype = dtype});
    refused("communication_dtype", {.communication_dtype = dtype});
  }
  const DType half = DType::kFloat16;
  refused("master_dtype", {.dtype = half, .master_dtype = DType::kBFloat16});
  refused("master_dtype", {.master_dtype = half});
  refused("accumulation_dtype",
          {.dtype = half, .accumulation_dtype = DType::kBFloat16});
  refused("max_grad_norm", {.exchange = {.max_grad_norm = -1}});
  refused("verify_every", {.exchange = {.verify_every = -1}});
  refused("num_threads", {.exchange = {.num_threads = -1}});
  refused("window", {.dtype = half, .loss_scale = {.window = 0}});
  EXPECT_NO_THROW((ZeroOptions{.loss_scale = {.window = 0}}.validate()));
}

TEST(ZeroConstruction, ArgumentsFitTheLayout) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const ParameterLayout layout = two_groups();
    const std::size_t n = layout.size();
    const auto rule = test::adam_rule();
    Buffer params(n, DType::kFloat16);
    std::vector<float> initial(n);
    ZeroOptions options = unscaled(1);
    const auto refused = [&](std::initializer_list<std::string_view> parts,
                             const MakeRule& make, View view, ConstView start) {
      expect_error(kArgument, parts, [&] {
        ZeroOptimizer zero(comm, layout, make, view, options, start);
      });
    };
    const View view = params.view();
    refused({"params", "float16 of 7101", "float32 of 7101"}, rule, initial,
            {});
    refused({"params", "float16 of 7100"}, rule, view.subview(0, n - 1), {});
    refused({"initial", "float32 of 7101", "float16"}, rule, view, view);
    refused({"initial", "float32 of 3"}, rule, view,
            ConstView(initial).subview(0, 3));
    refused({"make_rule"}, nullptr, view, {});
    refused({"make_rule", "null"},
            [](const ParameterLayout&) { return nullptr; }, view, {});
    options.master_dtype = DType::kFloat16;
    refused({"master_dtype", "lamb", "float16"}, test::lamb_rule(), view, {});
    options.master_dtype = DType::kFloat32;
    const auto experts = [&](std::vector<ExpertGroup> groups) {
      options.experts = std::move(groups);
      refused({"experts"}, rule, view, {});
    };
    experts({{.group = 2, .comm = &comm}});
    experts({{.group = 1, .comm = nullptr}});
    experts({{.group = 1, .comm = &comm}, {.group = 1, .comm = &comm}});
    experts({{.group = 1, .comm = &comm}, {.group = 0, .comm = &comm}});
    options.experts.clear();
    EXPECT_NO_THROW(ZeroOptimizer(comm, layout, rule, view, options));
  });
}

// Every field in which ranks may differ, and what then shows the difference.
TEST(ZeroConstruction, RanksGiveTheSameOptions) {
  ZeroOptions base = unscaled(1);
  std::vector<ZeroOptions> others(17, base);
  std::size_t next = 0;
  others[next++].stage = 2;
  others[next++].communication_dtype = DType::kFloat32;
  others[next++].accumulation_dtype = DType::kFloat16;
  others[next++].master_dtype = DType::kFloat16;
  others[next++].average = false;
  others[next++].overlap = false;
  others[next++].exchange.max_grad_norm = 2;
  others[next++].exchange.bucket_elements = 1024;
  others[next++].exchange.verify_every = 1;
  others[next++].exchange.skip_nonfinite = false;
  others[next++].loss_scale.initial_scale = 2;
  others[next++].loss_scale.dynamic = true;
  others[next++].loss_scale.window = 5;
  others[next++].loss_scale.hysteresis = 5;
  others[next++].loss_scale.consecutive_hysteresis = true;
  others[next++].loss_scale.at_minimum = precision::AtMinimum::kHold;
  others[next++].loss_scale.max_scale = 0x1p20;
  ASSERT_EQ(next, others.size());
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    const ParameterLayout layout = two_groups();
    Buffer params(layout.size(), DType::kFloat16);
    const auto differs = [&](const ParameterLayout& of, const MakeRule& make,
                             const ZeroOptions& options, View view) {
      expect_error(kArgument, {"must be the same on all ranks", "rank 2"},
                   [&] { ZeroOptimizer zero(comm, of, make, view, options); });
    };
    const bool is_other = comm.rank() == 2;
    const auto rule = test::adam_rule();
    for (const ZeroOptions& other : others)
      differs(layout, rule, is_other ? other : base, params.view());
    differs(layout, is_other ? test::adam_rule({.beta1 = 0.8}) : rule, base,
            params.view());
    const auto renamed = ParameterLayout::of({{"x", {layout.size()}}});
    differs(is_other ? renamed : layout, rule, base, params.view());
    std::vector<float> wide(layout.size());
    differs(layout, rule, is_other ? unscaled(1, DType::kFloat32) : base,
            is_other ? View(wide) : params.view());
    // Options that change no result may differ.
    ZeroOptions threads = base;
    threads.exchange.num_threads = 1 + comm.rank();
    EXPECT_NO_THROW(ZeroOptimizer(comm, layout, rule, params.view(), threads));
  });
}

TEST(ZeroConstruction, AtTheMinimumScaleTheParameterIsNamedOnAllRanks) {
  const ParameterLayout layout = two_groups();
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2})
      for (const int guilty : {0, 2}) {
        ZeroOptions options = unscaled(stage);
        options.loss_scale = {.initial_scale = 1, .hysteresis = 1};
        ZeroRun run(comm, layout, test::adam_rule(), options);
        ZeroRun spared(comm, layout, test::adam_rule(), options);
        const std::vector<float> grads(layout.size(), 0.5f);
        for (int t = 0; t < 2; ++t) {
          auto bad = grads;
          if (comm.rank() == guilty) {
            bad[layout.parameter("second").offset + 3499] = kInfinity;
            bad[layout.parameter("last").offset] = kInfinity;
          }
          const StateDict state = copy_of(run.optimizer->state());
          const auto before = run.values();
          expect_error(ErrorCode::kNonFinite,
                       {"minimum of 1", "'second'",
                        fmt::format("last good step was {}", t)},
                       [&] { run.step(bad); });
          EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), state,
                                       {"skipped_steps"}));
          EXPECT_EQ(run.values(), before);
          EXPECT_EQ(run.optimizer->progress().skipped, t + 1);
          // Training may go on.
          EXPECT_TRUE(run.step(grads).applied);
          spared.step(grads);
          EXPECT_EQ(run.values(), spared.values()) << "stage " << stage;
        }
      }
  });
}

}  // namespace
}  // namespace thinwire::zero::construction_test
