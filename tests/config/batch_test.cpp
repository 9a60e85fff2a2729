// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/errors.h"
#include "thinwire/config/config.h"

namespace thinwire::config::batch_test {
namespace {

using Given = std::optional<std::int64_t>;

Config with_batch(Given train, Given micro, Given steps) {
  return {.train_batch_size = train,
          .train_micro_batch_size_per_gpu = micro,
          .gradient_accumulation_steps = steps};
}

BatchSizes batch(Given train, Given micro, Given steps, int world = 4) {
  return with_batch(train, micro, steps).batch(world);
}

void expect_rejected(const Config& config,
                     std::initializer_list<std::string_view> parts) {
  test::expect_invalid(parts, [&] { config.validate(4); });
}

TEST(Batch, IsDeterminedByAnyTwo) {
  const BatchSizes sizes{.train = 64, .micro = 8, .accumulation_steps = 2};
  EXPECT_EQ(batch(64, 8, 2), sizes);
  EXPECT_EQ(batch(64, 8, {}), sizes);
  EXPECT_EQ(batch(64, {}, 2), sizes);
  EXPECT_EQ(batch({}, 8, 2), sizes);
}

TEST(Batch, IsDeterminedByEitherSizeAlone) {
  const BatchSizes sizes{.train = 64, .micro = 16, .accumulation_steps = 1};
  EXPECT_EQ(batch(64, {}, {}), sizes);
  EXPECT_EQ(batch({}, 16, {}), sizes);
}

TEST(Batch, MayBeLeftToTheCaller) {
  EXPECT_EQ(batch({}, {}, {}), BatchSizes{});
  EXPECT_EQ(batch({}, {}, 3), BatchSizes{.accumulation_steps = 3});
}

TEST(Batch, RejectsWhatDoesNotMultiplyExactly) {
  expect_rejected(with_batch(65, 8, 2),
                  {"train_batch_size", "8 * 2 * 4", "65"});
  expect_rejected(with_batch(60, 8, {}), {"a multiple of", "32", "60"});
  expect_rejected(with_batch(60, {}, 2), {"a multiple of", "8", "60"});
  expect_rejected(with_batch(6, {}, {}), {"a multiple of", "4", "6"});
  expect_rejected(with_batch(8, 8, {}), {"a multiple of", "32", "8"});
}

TEST(Batch, RefusesNumbersOutOfRange) {
  expect_rejected(with_batch(0, {}, {}), {"train_batch_size", ">= 1", "0"});
  expect_rejected(with_batch({}, -8, {}),
                  {"train_micro_batch_size_per_gpu", ">= 1", "-8"});
  expect_rejected(with_batch({}, 8, 0),
                  {"gradient_accumulation_steps", ">= 1", "0"});
  expect_rejected(with_batch({}, std::int64_t{1} << 62, 1), {"below 2^63"});
  test::expect_invalid({"world", ">= 1", "0"}, [] { Config{}.validate(0); });
}

}  // namespace
}  // namespace thinwire::config::batch_test
