// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <type_traits>

#include "config/checks.h"
#include "config/keys.h"
#include "core/duration.h"
#include "core/require.h"
#include "optim/checks.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/deepspeed/loss_scaler.h"
#include "thinwire/deepspeed/optimizers.h"

namespace thinwire::config {

using optim::require_dtype;
using optim::require_model_dtype;

namespace {

// Checks the options that all groups share. The optimizer itself checks its
// groups, because their number is known only from the layout.
template <class Options>
void check_optimizer(Options options, Semantics semantics) {
  options.groups.clear();
  if constexpr (requires { options.validate(std::size_t{1}); }) {
    options.validate(1);
  } else {
    const auto layout = ParameterLayout::of({{"p", {1}}});
    if constexpr (std::is_same_v<Options, lean::LeanOnebitAdamOptions>) {
      require(semantics == Semantics::kCorrected, "semantics",
              "corrected with lean_onebit_adam", "deepspeed");
      options.validate(layout);
    } else if (semantics == Semantics::kDeepSpeed) {
      deepspeed::validate(options, layout);
    } else {
      options.validate(layout);
    }
  }
}

void check_loss_scale(const Config& config) {
  const precision::LossScalerOptions& scale = config.precision.loss_scale;
  if (config.semantics == Semantics::kCorrected)
    scale.validate();
  else
    static_cast<void>(deepspeed::loss_scaler(
        config.zero.stage > 0 ? deepspeed::zero_loss_scaler(scale)
                              : deepspeed::wrapper_loss_scaler(scale)));
}

void check_precision(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  require_model_dtype("precision.dtype", precision.dtype);
  require_dtype(precision.master_dtype == DType::kFloat32 ||
                    precision.master_dtype == precision.dtype,
                "precision.master_dtype", "float32 or precision.dtype",
                precision.master_dtype);
  require_dtype(precision.state_dtype == DType::kFloat32 ||
                    precision.state_dtype == precision.master_dtype,
                "precision.state_dtype", "float32 or precision.master_dtype",
                precision.state_dtype);
  require_dtype(precision.master_dtype == DType::kFloat32 ||
                    config.semantics == Semantics::kCorrected,
                "precision.master_dtype", "float32 with deepspeed semantics",
                precision.master_dtype);
  require_dtype(
      precision.dtype != DType::kBFloat16 ||
          config.semantics == Semantics::kCorrected || config.zero.stage > 0,
      "precision.dtype",
      "float32 or float16 with deepspeed semantics and no ZeRO, whose "
      "wrapper for bf16 was never recorded (use ZeRO stage 1)",
      precision.dtype);
  if (precision.dtype == DType::kFloat16) {
    require(precision.check_grad_overflow, "precision.check_grad_overflow",
            "true with float16, whose gradients overflow", false);
    check_loss_scale(config);
  }
  require_dtype(config.accumulation_dtype == DType::kFloat32 ||
                    config.accumulation_dtype == precision.dtype,
                "accumulation_dtype", "float32 or precision.dtype",
                config.accumulation_dtype);
  require_model_dtype("communication_dtype",
                      config.communication_dtype.value_or(precision.dtype));
}

void check_zero(const Config& config) {
  const ZeroConfig& zero = config.zero;
  require(zero.stage >= 0 && zero.stage <= 2, "zero.stage", "0, 1 or 2",
          zero.stage);
  require(zero.reduce_bucket_size >= 0, "zero.reduce_bucket_size", ">= 0",
          zero.reduce_bucket_size);
  require(zero.allgather_bucket_size >= 0, "zero.allgather_bucket_size", ">= 0",
          zero.allgather_bucket_size);
  zero.wire.validate("zero.wire.bits_up (thinwire.zero_bits_up)",
                     "zero.wire.bits_down (thinwire.zero_bits_down)",
                     "zero.wire.residual_dtype");
  if (zero.stage == 0 || config.semantics == Semantics::kCorrected) return;
  require(std::holds_alternative<optim::AdamOptions>(config.optimizer),
          "optimizer", "adam with ZeRO and deepspeed semantics",
          name_of(config.optimizer));
  require(!std::get<optim::AdamOptions>(config.optimizer).epsilon_inside_sqrt,
          "optimizer.epsilon_inside_sqrt",
          "false with ZeRO and deepspeed semantics", true);
  require(zero.offload_optimizer == OffloadDevice::kNone,
          "zero.offload_optimizer (zero_optimization.offload_optimizer.device)",
          "none with deepspeed semantics", "cpu");
}

void check_checkpoint(const CheckpointConfig& c) {
  require(c.every_steps >= 0, "checkpoint.every_steps", ">= 0", c.every_steps);
  require(c.every.count() >= 0 && c.every <= std::chrono::hours(1000),
          "checkpoint.every", "in 0 .. 1000h", to_text(c.every));
  require(c.keep_last >= 0, "checkpoint.keep_last", ">= 0", c.keep_last);
  require(c.keep_every >= 0, "checkpoint.keep_every", ">= 0", c.keep_every);
}

void check_telemetry(const TelemetryConfig& t) {
  require(t.every >= 1, "telemetry.every", ">= 1", t.every);
  require(t.residual_every >= 0, "telemetry.residual_every", ">= 0",
          t.residual_every);
}

void check_outer(const outer::OuterOptions& o) {
  if (o.sync_every != 0) return o.validate();
  require(o == outer::OuterOptions{},
          "outer.sync_every (thinwire.outer.sync_every)",
          ">= 1 with other settings of outer", 0);
}

}  // namespace

void check_without_ranks(const Config& config) {
  std::visit(
      []<class Options>(const Options& options) {
        if constexpr (requires { options.compression; }) {
          require(options.compression.exchange == optim::ExchangeOptions{},
                  "optimizer.exchange",
                  "left as it is: fields of Config say the same",
                  "other settings");
        }
      },
      config.optimizer);
  require(
      std::isfinite(config.gradient_clipping) && config.gradient_clipping >= 0,
      "gradient_clipping", "finite and >= 0", config.gradient_clipping);
  require(std::isfinite(config.gradient_predivide_factor) &&
              config.gradient_predivide_factor > 0,
          "gradient_predivide_factor", "finite and > 0",
          config.gradient_predivide_factor);
  config.average.validate();
  config.exchange_options().validate();
  std::visit(
      [&](const auto& options) { check_optimizer(options, config.semantics); },
      config.optimizer_options());
  check_precision(config);
  config.schedule.validate();
  check_zero(config);
  require(config.comm.ranks_per_host >= 0, "comm.ranks_per_host", ">= 0",
          config.comm.ranks_per_host);
  check_checkpoint(config.checkpoint);
  check_telemetry(config.telemetry);
  check_outer(config.outer);
  for (const auto& [name, text] : config.other_objects)
    require(!is_known_key(name), "other_objects", "named as no key is",
            fmt::format("'{}'", name));
  require(config.steps_per_print >= 0, "steps_per_print", ">= 0",
          config.steps_per_print);
}

void Config::validate(int world) const {
  check_under_next_step(*this);
  check_without_ranks(*this);
  static_cast<void>(batch(world));
  check_combinations(*this, world);
}

}  // namespace thinwire::config
