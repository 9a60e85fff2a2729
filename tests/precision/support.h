// SPDX-License-Identifier: Apache-2.0
// Mixed precision around every optimizer, set up so that a few steps go through
// all of its phases.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "optim/low_bit/cases.h"
#include "support/converted.h"
#include "support/same_bits.h"
#include "thinwire/precision/mixed_precision.h"

namespace thinwire::test {

using precision::MixedPrecision;
using precision::MixedPrecisionOptions;

/// Exact to step 3. Group 1 stays exact throughout, where `mixed`.
inline optim::OnebitAdamOptions short_onebit_adam(bool mixed = false) {
  optim::OnebitAdamOptions o{.learning_rate = 0.01, .freeze = {.step = 3}};
  o.groups.resize(2);
  o.groups[1].weight_decay = 0.1;
  o.groups[1].non_freeze = mixed;
  o.compression.exchange.max_grad_norm = 1;
  o.compression.exchange.bucket_elements = 900;
  return o;
}

/// All five optimizers, with grouped_layout().
inline std::vector<LowBitCase> every_optimizer() {
  const optim::ExchangeOptions exchange{.max_grad_norm = 1,
                                        .bucket_elements = 900};
  return {
      {"adam",
       exact_adam({.learning_rate = 0.01, .weight_decay = 0.1}, exchange), 5},
      {"lamb",
       exact_lamb({.learning_rate = 0.01, .weight_decay = 0.1}, exchange), 5},
      {"onebit_adam", onebit_adam(short_onebit_adam()), 7},
      {"onebit_adam_mixed", onebit_adam(short_onebit_adam(true)), 6},
      {"onebit_lamb", onebit_lamb(short_onebit_lamb()), 7},
      {"zero_one_adam", zero_one_adam(short_zero_one_adam()), 21}};
}

/// (world, dtype, optimizer)
using TrainingCase = std::tuple<int, DType, LowBitCase>;

/// "adam_float16_w2"
inline std::string name_of_training(
    const ::testing::TestParamInfo<TrainingCase>& tested) {
  const auto& [world, dtype, optimizer] = tested.param;
  return fmt::format("{}_{}_w{}", optimizer.name, to_string(dtype), world);
}

/// Small multiples of a power of two, so that sums of up to four ranks, their
/// means in worlds of 1, 2 and 4, and all of these times a power of two are
/// exact in fp16 and in bf16. 0 in the tensor "dead".
inline std::vector<float> grid_gradient(const ParameterLayout& layout,
                                        std::int64_t step, int rank) {
  std::vector<float> values(layout.size());
  std::uint32_t state = 1;
  const auto next = [&state](std::uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int>((state >> 16) % below);
  };
  for (float& value : values) value = static_cast<float>(next(31) - 15);
  state = 77u + static_cast<std::uint32_t>(step) * 16u +
          static_cast<std::uint32_t>(rank);
  float size = 1.0f / 64;
  for (const Parameter& p : layout.parameters()) {
    for (std::size_t i = 0; i < p.size; ++i) {
      float& value = values[p.offset + i];
      value = (value + static_cast<float>(next(31) - 15)) * size;
      if (p.name == "dead") value = 0;
    }
    size /= 2;
  }
  return values;
}

/// fp16 with a scale that stays, or bf16, which has none.
inline MixedPrecisionOptions with_static_scale(DType dtype,
                                               double scale = 1024) {
  return {.dtype = dtype,
          .loss_scale = {.initial_scale = scale, .dynamic = false}};
}

/// With fp16 the scale falls where a gradient overflows, and grows in between.
inline MixedPrecisionOptions with_moving_scale(DType dtype) {
  return {.dtype = dtype,
          .loss_scale = {.initial_scale = 4096, .window = 1, .hysteresis = 2}};
}

/// Overflows at every fourth call, on rank 0.
inline std::vector<float> gradient_that_overflows(const ParameterLayout& layout,
                                                  std::int64_t call, int rank) {
  auto grads = gradient_with_gaps(layout, call, rank);
  if (call % 4 == 0 && rank == 0)
    grads[9] = std::numeric_limits<float>::infinity();
  return grads;
}

inline Buffer copied(ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (values.bytes() != 0)
    std::memcpy(copy.data(), values.data(), values.bytes());
  return copy;
}

inline void alone(const std::function<void(comm::Communicator&)>& body) {
  comm::run_local_ranks(1, body);
}

inline ParameterLayout layout_of(std::size_t size) {
  return ParameterLayout::of({{"p", {size}}});
}

/// With these, exp_avg is what is left of the gradient after it has been
/// unscaled and clipped.
inline optim::AdamOptions seeing_gradients() {
  return {.beta1 = 0, .beta2 = 0, .bias_correction = false};
}

/// One rank's training: what a caller of such an optimizer holds.
struct Training {
  Training(std::unique_ptr<precision::LowPrecisionOptimizer> made,
           std::size_t size, DType dtype)
      : optimizer(std::move(made)), params(size, dtype), grad_dtype(dtype) {
    optimizer->write_params(params.view());
  }
  Training(comm::Communicator& comm, const ParameterLayout& layout,
           const MakeOptimizer& make, const MixedPrecisionOptions& options)
      : Training(
            std::make_unique<MixedPrecision>(comm, layout, make(comm, layout),
                                             normal(layout.size(), 3), options),
            layout.size(), options.dtype) {}

  /// `grads` are those of the loss itself.
  optim::StepReport step(std::vector<float> grads) {
    const auto scale = static_cast<float>(optimizer->loss_scale());
    for (float& g : grads) g *= scale;
    Buffer rounded = converted(grads, grad_dtype);
    return optimizer->step(params.view(), rounded.view());
  }

  /// The parameters are the masters, rounded.
  [[nodiscard]] ::testing::AssertionResult params_are_rounded_masters() const {
    return same_bytes(params.view(),
                      converted(optimizer->masters(), params.dtype()).view());
  }

  [[nodiscard]] float gradient_seen() const {
    return copy_of(optimizer->state()).array("exp_avg").as<float>()[0];
  }

  std::unique_ptr<precision::LowPrecisionOptimizer> optimizer;
  Buffer params;
  DType grad_dtype;
};

}  // namespace thinwire::test
