// SPDX-License-Identifier: Apache-2.0
#include "config/batch.h"

#include <fmt/format.h>

#include <limits>

#include "core/require.h"

namespace thinwire::config {

namespace {

void require_count(const char* name, std::optional<std::int64_t> value) {
  require(value.value_or(1) >= 1, name, ">= 1", value.value_or(1));
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  if (a > std::numeric_limits<std::int64_t>::max() / b)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("train_batch_size must be below 2^63, got {} * {}", a, b));
  return a * b;
}

// `whole` / `part`, which must have no rest.
std::int64_t quotient(std::int64_t whole, std::int64_t part,
                      std::string_view divisor) {
  require(whole % part == 0, "train_batch_size",
          fmt::format("a multiple of {} = {}", divisor, part), whole);
  return whole / part;
}

}  // namespace

BatchSizes resolve_batch(const GivenBatch& given, int world) {
  require(world >= 1, "world", ">= 1", world);
  require_count("train_batch_size", given.train);
  require_count("train_micro_batch_size_per_gpu", given.micro);
  require_count("gradient_accumulation_steps", given.accumulation);

  BatchSizes sizes;
  if (given.micro.has_value()) {
    sizes.micro = *given.micro;
    const std::int64_t once = product(sizes.micro, world);
    if (given.train.has_value() && !given.accumulation.has_value())
      sizes.accumulation_steps = quotient(
          *given.train, once, "train_micro_batch_size_per_gpu * ranks");
    else
      sizes.accumulation_steps = given.accumulation.value_or(1);
    sizes.train = product(once, sizes.accumulation_steps);
    require(given.train.value_or(sizes.train) == sizes.train,
            "train_batch_size",
            fmt::format("train_micro_batch_size_per_gpu * "
                        "gradient_accumulation_steps * ranks = {} * {} * {}",
                        sizes.micro, sizes.accumulation_steps, world),
            given.train.value_or(0));
    return sizes;
  }
  sizes.accumulation_steps = given.accumulation.value_or(1);
  if (given.train.has_value()) {
    sizes.train = *given.train;
    sizes.micro =
        quotient(sizes.train, product(sizes.accumulation_steps, world),
                 "gradient_accumulation_steps * ranks");
  }
  return sizes;
}

}  // namespace thinwire::config
