// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>

#include "core/require.h"
#include "core/require_view.h"
#include "exchange/codec/codec.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

/// Checks of a step's input. They throw Error(kInvalidArgument) with the
/// argument, its range and the value given.
namespace thinwire::optim {

inline void require_weight_decay(double value) {
  require(std::isfinite(value) && value >= 0, "weight_decay", "finite and >= 0",
          value);
}

inline void require_group(std::size_t group, std::size_t num_groups) {
  require(group < num_groups, "group", fmt::format("below {}", num_groups),
          group);
}

inline void require_warmup_bits(std::optional<int> warmup_bits) {
  exchange::require_bits_or_exact("warmup_bits", warmup_bits.value_or(0));
}

/// Returns whether parameters may have this dtype: fp32, fp16 or bf16.
[[nodiscard]] inline bool is_model_dtype(DType dtype) noexcept {
  return dtype == DType::kFloat32 || is_16_bit(dtype);
}

inline void require_dtype(bool holds, std::string_view name,
                          std::string_view range, DType dtype) {
  require(holds, name, range, to_string(dtype));
}

inline void require_model_dtype(std::string_view name, DType dtype) {
  require_dtype(is_model_dtype(dtype), name, "float32, float16 or bfloat16",
                dtype);
}

/// Throws Error(kInvalidArgument) unless `params` has one dtype. Alternatively
/// fp32 may follow a 16-bit part, with fp32 masters and without groups of
/// experts.
inline void require_fit_for_two_dtypes(ConstView params, DType master_dtype,
                                       std::size_t num_experts) {
  if (!params.is_joined()) return;
  const DType second = params.parts()[1].dtype();
  require(is_16_bit(params.dtype()) && second == DType::kFloat32, "params",
          "of one dtype, or of 16 bits and then float32",
          fmt::format("{} and then {}", to_string(params.dtype()),
                      to_string(second)));
  require(master_dtype == DType::kFloat32, "master_dtype",
          "float32 with parameters of two dtypes", to_string(master_dtype));
  require(num_experts == 0, "experts", "none with parameters of two dtypes",
          num_experts);
}

/// Checks the arguments of UpdateRule::apply_part().
inline void require_part(Range part, const UpdateArrays& arrays,
                         const ParameterLayout& layout) {
  require(
      part.offset <= layout.size() && part.size <= layout.size() - part.offset,
      "part", fmt::format("within {}", layout.size()),
      fmt::format("{} of size {}", part.offset, part.size));
  require(arrays.params.size() == part.size &&
              arrays.grads.size() == part.size &&
              (arrays.low_precision.empty() ||
               arrays.low_precision.size() == part.size),
          "arrays", fmt::format("of {} elements", part.size),
          fmt::format("params of {}, grads of {}, low_precision of {}",
                      arrays.params.size(), arrays.grads.size(),
                      arrays.low_precision.size()));
}

/// Requires arrays of one dtype each, or joined at element `cut`; 0 forbids
/// joined arrays.
inline void require_cut(const StepInput& input, std::size_t cut) {
  const auto check = [cut](std::string_view name, const View& array) {
    require(!array.is_joined() || array.first_size() == cut, name,
            cut == 0
                ? "of one dtype for this optimizer"
                : fmt::format("of another dtype from element {} on only", cut),
            fmt::format("another one from element {} on", array.first_size()));
  };
  check("params", input.params);
  check("grads", input.grads);
  check("low_precision", input.low_precision);
}

/// Checks the arguments of step(), except the parameters' dtype.
inline void require_step_input(const StepInput& input, std::size_t size,
                               std::size_t cut = 0) {
  require_cut(input, cut);
  require_view("params", input.params, size, true, true);
  require_view("grads", input.grads, size, true, true);
  require_params_and_grads(input.params, input.grads);
  if (!input.low_precision.empty())
    require_view("low_precision", input.low_precision, size, false, true);
  require(std::isfinite(input.loss_scale) && input.loss_scale > 0, "loss_scale",
          "finite and > 0", input.loss_scale);
}

/// Checks the arguments of step() of optimizers that keep fp32 parameters.
inline void require_float32_step_input(const StepInput& input,
                                       std::size_t size) {
  require_view("params", input.params, size, true, false);
  require_step_input(input, size);
}

}  // namespace thinwire::optim
