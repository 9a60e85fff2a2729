// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>

#include "core/require.h"
#include "thinwire/config/config.h"

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

// Returns `whole` / `part`, which must have no remainder.
std::int64_t quotient(std::int64_t whole, std::int64_t part,
                      std::string_view divisor) {
  require(whole % part == 0, "train_batch_size",
          fmt::format("a multiple of {} = {}", divisor, part), whole);
  return whole / part;
}

}  // namespace

BatchSizes Config::batch(int world) const {
  require(world >= 1, "world", ">= 1", world);
  require_count("train_batch_size", train_batch_size);
  require_count("train_micro_batch_size_per_gpu",
                train_micro_batch_size_per_gpu);
  require_count("gradient_accumulation_steps", gradient_accumulation_steps);

  BatchSizes sizes;
  if (train_micro_batch_size_per_gpu.has_value()) {
    sizes.micro = *train_micro_batch_size_per_gpu;
    const std::int64_t once = product(sizes.micro, world);
    if (train_batch_size.has_value() &&
        !gradient_accumulation_steps.has_value())
      sizes.accumulation_steps = quotient(
          *train_batch_size, once, "train_micro_batch_size_per_gpu * ranks");
    else
      sizes.accumulation_steps = gradient_accumulation_steps.value_or(1);
    sizes.train = product(once, sizes.accumulation_steps);
    require(train_batch_size.value_or(sizes.train) == sizes.train,
            "train_batch_size",
            fmt::format("train_micro_batch_size_per_gpu * "
                        "gradient_accumulation_steps * ranks = {} * {} * {}",
                        sizes.micro, sizes.accumulation_steps, world),
            train_batch_size.value_or(0));
    return sizes;
  }
  sizes.accumulation_steps = gradient_accumulation_steps.value_or(1);
  if (train_batch_size.has_value()) {
    sizes.train = *train_batch_size;
    sizes.micro =
        quotient(sizes.train, product(sizes.accumulation_steps, world),
                 "gradient_accumulation_steps * ranks");
  }
  return sizes;
}

}  // namespace thinwire::config
