// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::train_gpt::model_test {
namespace {

constexpr ModelShape kSmall{.layers = 2, .width = 24, .heads = 3, .context = 8};

Batch batch_of(std::size_t sequences, std::size_t context, std::uint64_t seed) {
  Batch batch{sequences, context, {}};
  for (std::size_t i = 0; i < sequences * (context + 1); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    batch.bytes.push_back(static_cast<std::uint8_t>(seed >> 56));
  }
  return batch;
}

std::vector<float> copy(View view) {
  const auto values = view.as<float>();
  return {values.begin(), values.end()};
}

TEST(Model, TheDemosShapeHasTheDemosSize) {
  Model model({});
  EXPECT_EQ(model.layout().size(), 932'608u);
}

TEST(Model, SeedDecidesTheParameters) {
  Model a(kSmall);
  Model b(kSmall);
  a.initialize(1);
  b.initialize(1);
  EXPECT_EQ(copy(a.params()), copy(b.params()));
  b.initialize(2);
  EXPECT_NE(copy(a.params()), copy(b.params()));
}

TEST(Model, InitialValuesAreAsDocumented) {
  Model model({});
  model.initialize(1);
  const auto deviation = [&](const char* name) {
    const Parameter& place = model.layout().parameter(name);
    double sum = 0;
    for (const float x :
         model.params().subview(place.offset, place.size).as<float>()) {
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
    return std::sqrt(sum / static_cast<double>(place.size));
  };
  // Of 8192 draws and more, the deviation is off by 3 % at the very most.
  const double width = 0.8 / std::sqrt(128.0);
  const double hidden = 0.8 / std::sqrt(512.0);
  const double residual = std::sqrt(8.0);
  EXPECT_NEAR(deviation("byte_0.weight"), 0.02, 6e-4);
  EXPECT_NEAR(deviation("positions.weight"), 0.02, 6e-4);
  EXPECT_NEAR(deviation("head.weight"), 0.02, 6e-4);
  EXPECT_NEAR(deviation("block_0.query_key_value.weight"), width, width * 0.03);
  EXPECT_NEAR(deviation("block_3.mlp_in.weight"), width, width * 0.03);
  EXPECT_NEAR(deviation("block_1.attention_out.weight"), width / residual,
              width / residual * 0.03);
  EXPECT_NEAR(deviation("block_2.mlp_out.weight"), hidden / residual,
              hidden / residual * 0.03);
  EXPECT_EQ(deviation("block_0.query_key_value.bias"), 0);
  EXPECT_EQ(deviation("final_norm.weight"), 1);
  EXPECT_EQ(deviation("final_norm.bias"), 0);
}

TEST(Model, LossesAddUpAndLeaveTheGradientAlone) {
  Model model(kSmall);
  model.initialize(4);
  const Batch batch = batch_of(4, 8, 2);
  const double mean = model.backward(batch);
  const std::vector<float> grads = copy(model.grads());
  // float sums of 32 losses near 5.5.
  EXPECT_NEAR(model.loss_sum(batch) / 32, mean, 1e-5);
  EXPECT_NEAR(mean, std::log(256.0), 0.1);
  EXPECT_EQ(copy(model.grads()), grads);
}

TEST(Model, NoPositionSeesWhatFollowsIt) {
  Model model(kSmall);
  model.initialize(5);
  // Wide weights, so that every byte matters.
  for (float& x : model.params().as<float>()) x *= 4.0f;
  Batch batch = batch_of(1, 8, 3);
  Batch prefix{1, 7, {batch.bytes.begin(), batch.bytes.end() - 1}};
  const double before = model.loss_sum(prefix);
  // The chances of the last byte sum to 1 only if the losses of the first
  // seven are the same in both.
  double chances = 0;
  for (int last = 0; last < 256; ++last) {
    batch.bytes.back() = static_cast<std::uint8_t>(last);
    chances += std::exp(before - model.loss_sum(batch));
  }
  EXPECT_NEAR(chances, 1.0, 1e-4);
}

TEST(Model, BytesBeforeTheWindowCountAsZero) {
  Model model(kSmall);
  model.initialize(6);
  const Batch one{1, 1, {65, 66}};
  const Parameter& table = model.layout().parameter("byte_1.weight");
  const double before = model.loss_sum(one);
  const auto rows =
      model.params().subview(table.offset, table.size).as<float>();
  for (std::size_t i = 24; i < rows.size(); ++i) rows[i] = 1.0f;
  EXPECT_EQ(model.loss_sum(one), before);
  for (std::size_t i = 0; i < 24; ++i) rows[i] = static_cast<float>(i);
  EXPECT_NE(model.loss_sum(one), before);
}

}  // namespace
}  // namespace thinwire::train_gpt::model_test
