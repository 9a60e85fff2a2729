// SPDX-License-Identifier: Apache-2.0
#include "optim/onebit_adam_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "optim/require.h"
#include "thinwire/core/checksum.h"

namespace thinwire::optim {

AdamOptions adam_options(const OnebitAdamOptions& options) {
  const bool honoured = policy_of(options.semantics).honours_adam_options;
  return {.learning_rate = options.learning_rate,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .weight_decay = options.weight_decay,
          .decoupled_decay = true,
          .bias_correction = honoured && options.bias_correction,
          .epsilon_inside_sqrt = honoured && options.epsilon_inside_sqrt,
          .groups = {options.groups.begin(), options.groups.end()}};
}

void OnebitAdamOptions::validate(const ParameterLayout& layout) const {
  adam_options(*this).validate(layout.num_groups());
  exchange.validate();
  if (amsgrad)
    throw Error(ErrorCode::kInvalidArgument,
                "1-bit Adam does not support AMSGrad: amsgrad must be false, "
                "got true");
  const std::int64_t least = policy_of(semantics).initialization_step ? 0 : 1;
  require(freeze_step >= least || freeze_step == kAutoFreeze, "freeze_step",
          fmt::format(">= {} or kAutoFreeze (-1)", least), freeze_step);
  require(freeze_step != kAutoFreeze || semantics == Semantics::kCorrected,
          "semantics", "corrected with an automatic freeze",
          to_string(semantics));
  require(lr_warmup_steps.value_or(0) >= 0, "lr_warmup_steps", ">= 0",
          lr_warmup_steps.value_or(0));
  require(total_steps.value_or(1) >= 1, "total_steps", ">= 1",
          total_steps.value_or(1));
  require(min_freeze_step >= 1, "min_freeze_step", ">= 1", min_freeze_step);
  require(max_freeze_step.value_or(1) >= 1, "max_freeze_step", ">= 1",
          max_freeze_step.value_or(1));
  require(freeze_ratio > 0 && freeze_ratio <= 1, "freeze_ratio", "in (0, 1]",
          freeze_ratio);
  require(std::isfinite(denom_floor) && denom_floor >= 0, "denom_floor",
          "finite and >= 0", denom_floor);
  require(
      residual_dtype == DType::kFloat32 || residual_dtype == DType::kBFloat16,
      "residual_dtype", "float32 or bfloat16", to_string(residual_dtype));
  require(residual_dtype == DType::kFloat32 ||
              !policy_of(semantics).scale_per_parameter,
          "residual_dtype", "float32 with deepspeed semantics",
          to_string(residual_dtype));

  std::vector<std::size_t> sizes(layout.num_groups());
  for (const Parameter& p : layout.parameters()) sizes[p.group] += p.size;
  for (std::size_t g = 0; g < groups.size(); ++g)
    require(groups[g].exp_avg_mask.empty() ||
                groups[g].exp_avg_mask.size() == sizes[g],
            fmt::format("groups[{}].exp_avg_mask", g),
            fmt::format("empty or {} values", sizes[g]),
            fmt::format("{} values", groups[g].exp_avg_mask.size()));
}

std::string describe(const OnebitAdamOptions& o) {
  const auto optional = [](const std::optional<std::int64_t>& value) {
    return value ? fmt::format("{}", *value) : std::string("none");
  };
  std::string text = fmt::format(
      "onebit_adam semantics={} freeze_step={} lr_warmup_steps={} "
      "total_steps={} min_freeze_step={} max_freeze_step={} freeze_ratio={} "
      "denom_floor={} scale={} residual_dtype={} max_grad_norm={} "
      "bucket_elements={}\n",
      to_string(o.semantics), o.freeze_step, optional(o.lr_warmup_steps),
      optional(o.total_steps), o.min_freeze_step, optional(o.max_freeze_step),
      o.freeze_ratio, o.denom_floor,
      o.scale == compress::Scale::kRms ? "rms" : "l1",
      to_string(o.residual_dtype), o.exchange.max_grad_norm,
      o.exchange.bucket_elements);
  for (std::size_t g = 0; g < o.groups.size(); ++g) {
    const std::vector<float>& mask = o.groups[g].exp_avg_mask;
    fmt::format_to(std::back_inserter(text),
                   "group {} non_freeze={} exp_avg_mask={:016x}\n", g,
                   o.groups[g].non_freeze, checksum(mask));
  }
  return text;
}

AutoFreeze auto_freeze(const OnebitAdamOptions& o, const Adam& adam) {
  AutoFreeze::Options options{.beta1 = 0, .ratio = o.freeze_ratio};
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    if (o.groups.empty() || !o.groups[g].non_freeze)
      options.beta1 = std::max(options.beta1, adam.group_options(g).beta1);
  if (o.lr_warmup_steps)
    options.earliest = *o.lr_warmup_steps;
  else if (o.total_steps)
    options.earliest = (*o.total_steps + 9) / 10;
  else
    options.earliest = o.min_freeze_step;
  options.latest = o.max_freeze_step.value_or(
      o.total_steps ? (*o.total_steps + 4) / 5 : std::int64_t{100'000});
  return AutoFreeze(options);
}

}  // namespace thinwire::optim
