// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "config/fields.h"
#include "config/keys.h"
#include "config/sections.h"
#include "thinwire/core/error.h"

namespace thinwire::config {

namespace {

using precision::LossScalerOptions;

constexpr std::string_view kUnlimited = "unlimited";
// Limits that keep scales finite in fp32, in which losses are multiplied.
constexpr Limits kPowers{.least = 0, .most = 127};
constexpr Limits kScales{.least = 0, .most = 0x1p127};

// Reads the scale as DeepSpeed does: 0 is dynamic, and a static scale makes the
// other keys unused.
void read_scale(Reader fp16, const Reader& own, bool is_reference,
                LossScalerOptions& scale) {
  double fixed = 0;
  fp16.field("loss_scale", fixed, kScales);
  scale.dynamic = fixed == 0;
  if (!scale.dynamic) fp16.be_lenient();

  std::int64_t power = 16;
  fp16.field("initial_scale_power", power, kPowers);
  scale.initial_scale = std::ldexp(1.0, static_cast<int>(power));
  if (own.has("initial_loss_scale") &&
      (!scale.dynamic || fp16.has("initial_scale_power")))
    own.exclude("initial_loss_scale",
                "left out if fp16.initial_scale_power or a static "
                "fp16.loss_scale is given");
  own.field("initial_loss_scale", scale.initial_scale, kPositive);
  if (!scale.dynamic) scale.initial_scale = fixed;

  fp16.field("loss_scale_window", scale.window, kAtLeastOne);
  fp16.field("hysteresis", scale.hysteresis,
             is_reference ? kNotNegative : kAtLeastOne);
  fp16.field("consecutive_hysteresis", scale.consecutive_hysteresis);
  fp16.field("min_loss_scale", scale.min_scale, kPositive);
}

void read_scale_limits(const Reader& own, LossScalerOptions& scale) {
  own.choice("at_minimum", scale.at_minimum,
             Choices<precision::AtMinimum>(kAtMinimum));
  double most = std::max(
      {LossScalerOptions{}.max_scale, scale.initial_scale, scale.min_scale});
  if (own.is_text("max_loss_scale", kUnlimited))
    most = std::numeric_limits<double>::infinity();
  else
    own.field("max_loss_scale", most, kPositive);
  scale.max_scale = most;
}

void read_data_types(const Reader& file, Config& config) {
  const Reader section = file.section("data_types");
  section.choice("grad_accum_dtype", config.accumulation_dtype,
                 Choices<DType>(kDtypes));
  DType parameters = config.precision.dtype;
  section.choice("param_dtype", parameters, Choices<DType>(kDtypes));
  if (parameters != config.precision.dtype)
    section.exclude("param_dtype", "what fp16.enabled and bf16.enabled say");
}

}  // namespace

void read_precision(const Reader& file, Config& config,
                    std::vector<KeyNote>& notes) {
  PrecisionConfig& precision = config.precision;
  Reader fp16 = file.section("fp16");
  Reader bf16 = file.section("bf16");
  bool is_fp16 = false;
  bool is_bf16 = false;
  fp16.field("enabled", is_fp16);
  bf16.field("enabled", is_bf16);
  if (is_fp16 && is_bf16)
    bf16.exclude("enabled", "false if fp16.enabled is true");
  if (is_fp16) precision.dtype = DType::kFloat16;
  if (is_bf16) precision.dtype = DType::kBFloat16;

  if (!is_fp16) {
    fp16.be_lenient();
    note_unused(notes, "fp16.", kNotEnabled);
  }
  const Reader own = file.section("thinwire");
  read_scale(fp16, own, config.semantics == Semantics::kDeepSpeed,
             precision.loss_scale);
  read_scale_limits(own, precision.loss_scale);
  if (!precision.loss_scale.dynamic)
    for (const std::string_view name :
         {"fp16.initial_scale_power", "fp16.loss_scale_window",
          "fp16.hysteresis", "fp16.consecutive_hysteresis",
          "fp16.min_loss_scale", "thinwire.max_loss_scale",
          "thinwire.at_minimum"})
      note_unused(notes, name, "the loss scale is static");
  bool low_masters = false;
  fp16.field("fp16_master_weights_and_grads", low_masters);
  if (is_fp16 && low_masters) precision.master_dtype = DType::kFloat16;

  own.field("check_grad_overflow", precision.check_grad_overflow);
  if (is_bf16) {
    bf16.field("check_grad_overflow", precision.check_grad_overflow);
    bool low_states = false;
    low_masters = false;
    bf16.field("bf16_master_weights_and_grads", low_masters);
    bf16.field("bf16_optimizer_states", low_states);
    if (low_masters) precision.master_dtype = DType::kBFloat16;
    if (low_states) precision.state_dtype = DType::kBFloat16;
  } else {
    note_unused(notes, "bf16.", kNotEnabled);
  }
  read_data_types(file, config);
}

void write_precision(const Writer& file, const Writer& own,
                     const Config& config) {
  const PrecisionConfig& precision = config.precision;
  const LossScalerOptions& scale = precision.loss_scale;
  const bool is_fp16 = precision.dtype == DType::kFloat16;
  const bool is_bf16 = precision.dtype == DType::kBFloat16;
  const double power = std::log2(scale.initial_scale);
  const bool is_power =
      kPowers.allow(power) && std::floor(power) == power &&
      std::ldexp(1.0, static_cast<int>(power)) == scale.initial_scale;
  {
    const Writer fp16 = file.section("fp16");
    fp16.field("enabled", is_fp16);
    if (!scale.dynamic)
      fp16.field("loss_scale", scale.initial_scale);
    else if (is_power)
      fp16.field("initial_scale_power", static_cast<std::int64_t>(power));
    fp16.field("loss_scale_window", scale.window);
    fp16.field("hysteresis", scale.hysteresis);
    fp16.field("consecutive_hysteresis", scale.consecutive_hysteresis);
    fp16.field("min_loss_scale", scale.min_scale);
    if (is_fp16)
      fp16.field("fp16_master_weights_and_grads",
                 precision.master_dtype == DType::kFloat16);
  }
  {
    const Writer bf16 = file.section("bf16");
    bf16.field("enabled", is_bf16);
    if (is_bf16) {
      bf16.field("check_grad_overflow", precision.check_grad_overflow);
      bf16.field("bf16_master_weights_and_grads",
                 precision.master_dtype == DType::kBFloat16);
      bf16.field("bf16_optimizer_states",
                 precision.state_dtype == DType::kBFloat16);
    }
  }
  const Writer types = file.section("data_types");
  types.choice("grad_accum_dtype", config.accumulation_dtype,
               Choices<DType>(kDtypes));

  if (!is_bf16) own.field("check_grad_overflow", precision.check_grad_overflow);
  if (scale.dynamic && !is_power)
    own.field("initial_loss_scale", scale.initial_scale);
  if (std::isinf(scale.max_scale))
    own.field("max_loss_scale", kUnlimited);
  else
    own.field("max_loss_scale", scale.max_scale);
  own.choice("at_minimum", scale.at_minimum,
             Choices<precision::AtMinimum>(kAtMinimum));
}

}  // namespace thinwire::config
