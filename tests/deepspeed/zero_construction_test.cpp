// SPDX-License-Identifier: Apache-2.0
// What no optimizer is made of.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"
#include "thinwire/deepspeed/zero_optimizer.h"

namespace thinwire::deepspeed::zero_construction_test {
namespace {

using test::expect_error;

constexpr auto kArgument = ErrorCode::kInvalidArgument;

TEST(DeepSpeedZeroConstruction, OptionsHaveRanges) {
  const auto refused = [](std::string_view field, const ZeroOptions& options) {
    expect_error(kArgument, {field}, [&] { options.validate(); });
  };
  for (const int stage : {-1, 0, 3}) refused("stage", {.stage = stage});
  for (const DType dtype : {DType::kFloat64, DType::kInt64}) {
    refused("dtype", {.dtype = dtype});
    refused("accumulation_dtype", {.accumulation_dtype = dtype});
    refused("communication_dtype", {.communication_dtype = dtype});
  }
  const DType half = DType::kFloat16;
  refused("max_grad_norm", {.exchange = {.max_grad_norm = -1}});
  refused("window", {.dtype = half, .loss_scale = {.window = 0}});
  EXPECT_NO_THROW((ZeroOptions{.loss_scale = {.window = 0}}.validate()));
  EXPECT_NO_THROW(
      (ZeroOptions{.dtype = half, .loss_scale = {.hysteresis = 0}}.validate()));
}

TEST(DeepSpeedZeroConstruction, ArgumentsFitTheLayout) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{"a", {5}}, {"b", {2}}});
    std::vector<float> params(7);
    std::vector<float> three(3);
    expect_error(kArgument, {"params", "float32 of 7", "float32 of 3"},
                 [&] { ZeroOptimizer zero(comm, layout, {}, three); });
    expect_error(kArgument, {"initial", "float32 of 3"}, [&] {
      ZeroOptimizer zero(comm, layout, {}, params, {}, three);
    });
    EXPECT_NO_THROW(ZeroOptimizer(comm, layout, {}, params));
  });
}

// Every field in which ranks may differ.
TEST(DeepSpeedZeroConstruction, RanksGiveTheSameOptions) {
  const ZeroOptions base{.dtype = DType::kFloat16};
  std::vector<ZeroOptions> others(8, base);
  others[0].stage = 2;
  others[1].communication_dtype = DType::kFloat32;
  others[2].accumulation_dtype = DType::kFloat16;
  others[3].average = false;
  others[4].round_robin = true;
  others[5].reduce_scatter = false;
  others[6].exchange.max_grad_norm = 2;
  others[7].loss_scale.hysteresis = 5;
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{"a", {5}}, {"b", {2}}});
    Buffer params(layout.size(), DType::kFloat16);
    const auto differs = [&](const optim::AdamOptions& adam,
                             const ZeroOptions& options) {
      expect_error(kArgument, {"must be the same on all ranks", "rank 2"}, [&] {
        ZeroOptimizer zero(comm, layout, adam, params.view(), options);
      });
    };
    const bool is_other = comm.rank() == 2;
    for (const ZeroOptions& other : others)
      differs({}, is_other ? other : base);
    differs({.beta1 = is_other ? 0.8 : 0.9}, base);
  });
}

TEST(DeepSpeedZeroConstruction, Item6FullParametersAreTheInitialOnes) {
  const auto layout =
      ParameterLayout::of({{"a", {5, 7}, 0}, {"b", {2}, 1}, {"c", {11}, 0}});
  for (const int world : {1, 2, 3, 4})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      std::vector<float> params = test::normal(layout.size(), 1);
      ZeroOptimizer zero(comm, layout, {}, params, {.round_robin = true});
      for (const Parameter& p : layout.parameters()) {
        const auto begin =
            params.begin() + static_cast<std::ptrdiff_t>(p.offset);
        EXPECT_EQ(zero.whole_values().parameter(p.name),
                  std::vector<float>(
                      begin, begin + static_cast<std::ptrdiff_t>(p.size)));
      }
    });
}

}  // namespace
}  // namespace thinwire::deepspeed::zero_construction_test
