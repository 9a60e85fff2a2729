// SPDX-License-Identifier: Apache-2.0
// Settings that are valid alone but exclude one another.
#include <fmt/format.h>

#include "config/checks.h"
#include "core/require.h"

namespace thinwire::config {

namespace {

// Names in messages: the field of Config, then the key of a file.
constexpr std::string_view kStage = "zero.stage (zero_optimization.stage)";
constexpr std::string_view kRanksPerHost =
    "comm.ranks_per_host (thinwire.ranks_per_host)";
constexpr std::string_view kUnderNextStep =
    "comm.compressed_under_next_step (thinwire.compressed_under_next_step)";

template <class Options>
bool uses(const Config& config) {
  return std::holds_alternative<Options>(config.optimizer);
}

bool is_exact(const Config& config) {
  return uses<optim::AdamOptions>(config) || uses<optim::LambOptions>(config);
}

void require_corrected(const Config& config, std::string_view with) {
  require(config.semantics == Semantics::kCorrected, "semantics",
          fmt::format("corrected with {}", with), to_string(config.semantics));
}

// Names a low-bit optimizer's alternative to ZeRO.
std::string_view instead_of_zero(const Config& config) {
  if (uses<optim::ZeroOneAdamOptions>(config))
    return "local steps keep whole states on every rank; use OneBitAdam with "
           "thinwire.lean";
  if (uses<optim::OnebitLambOptions>(config))
    return "a sharded update would send parameters instead of single bits; use "
           "OneBitAdam with thinwire.lean, or Lamb with thinwire.zero_bits_up "
           "and thinwire.zero_bits_down";
  if (uses<lean::LeanOnebitAdamOptions>(config))
    return "it shards by itself; leave zero_optimization out";
  if (config.precision.dtype == DType::kFloat16)
    return "use thinwire.lean with bf16, which shards by itself, or Adam with "
           "thinwire.zero_bits_up and thinwire.zero_bits_down";
  return "use thinwire.lean, which shards by itself, or Adam with "
         "thinwire.zero_bits_up and thinwire.zero_bits_down";
}

// Names the option that averages gradients in low bits elsewhere.
std::string_view instead_of_average(const Config& config) {
  if (config.zero.stage > 0)
    return "use thinwire.zero_bits_up and thinwire.zero_bits_down";
  if (config.outer.sync_every > 0)
    return "outer.warmup_bits averages gradients of its warm-up";
  return "warmup_bits averages gradients of its exact steps";
}

void check_average(const Config& config) {
  const optim::AverageOptions& average = config.average;
  if (!is_exact(config))
    require(average.first_steps == std::nullopt && average.first_bits == 4 &&
                average.total_steps == std::nullopt,
            "average", "left as it is with this optimizer", "other settings");
  if (average.is_exact()) return;
  const bool is_in_bits = average.bits != 0;
  const std::string_view name = is_in_bits ? "bits" : "low_rank";
  const auto refuse_with = [&](bool holds, std::string_view with) {
    require(holds, name,
            fmt::format("0 with {}: {}", with, instead_of_average(config)),
            is_in_bits ? average.bits : average.low_rank);
  };
  refuse_with(config.zero.stage == 0, "ZeRO");
  refuse_with(is_exact(config), name_of(config.optimizer));
  refuse_with(config.outer.sync_every == 0, "an outer loop (thinwire.outer)");
  require_corrected(config, name);
  require(!config.communication_dtype, "communication_dtype",
          fmt::format("unset with {}, which says how gradients travel", name),
          to_string(config.communication_dtype.value_or(DType::kFloat32)));
}

void check_optimizer_and_zero(const Config& config) {
  const ZeroConfig& zero = config.zero;
  if (!is_exact(config)) {
    require(zero.stage == 0, kStage,
            fmt::format("0 with {}: {}", name_of(config.optimizer),
                        instead_of_zero(config)),
            zero.stage);
    require(zero.wire == zero::WireOptions{}, "zero.wire",
            fmt::format("left as it is with {}", name_of(config.optimizer)),
            "other settings");
  }
  require(config.precision.master_dtype == DType::kFloat32 ||
              uses<optim::AdamOptions>(config),
          "precision.master_dtype", "float32 with this optimizer",
          to_string(config.precision.master_dtype));
}

void check_wire_and_windows(const Config& config, int world) {
  if (!residuals_add_up(config, world)) return;
  const DType residuals = config.wire_options(world).residuals();
  require(residuals == DType::kFloat32,
          "zero.wire.residual_dtype (thinwire.residual_dtype)",
          "float32 with zero.wire.bits_up at stage 2 and windows of several "
          "backwards, or of unknown length: leave it out",
          to_string(residuals));
}

void check_wire_and_rest(const Config& config, int world) {
  const ZeroConfig& zero = config.zero;
  if (zero.wire.is_exact()) return;
  constexpr std::string_view kBits =
      "zero.wire.bits_up and bits_down (thinwire.zero_bits_up and "
      "zero_bits_down)";
  require(zero.stage > 0, kStage, fmt::format("1 or 2 with {}", kBits),
          zero.stage);
  require_corrected(config, kBits);
  require(
      zero.wire.bits_up == 0 || !config.communication_dtype,
      "communication_dtype",
      "unset with zero.wire.bits_up (thinwire.zero_bits_up), which says how "
      "gradients travel",
      to_string(config.communication_dtype.value_or(DType::kFloat32)));
  check_wire_and_windows(config, world);
}

void check_lean(const Config& config) {
  if (!uses<lean::LeanOnebitAdamOptions>(config)) return;
  require(config.precision.dtype != DType::kFloat16, "precision.dtype",
          "float32 or bfloat16 with lean_onebit_adam: fp16 cannot be split off "
          "an fp32; use bf16",
          to_string(config.precision.dtype));
}

void check_hierarchy(const Config& config, int world) {
  const CommConfig& comm = config.comm;
  if (comm.hierarchy == Hierarchy::kFlat) return;
  const int each = comm.ranks_per_host;
  require(each <= 1 || world % each == 0, kRanksPerHost,
          fmt::format("a divisor of the number of ranks, {}", world), each);
  if (comm.hierarchy != Hierarchy::kByHost) return;
  require_corrected(config, "hierarchy by_host");
  require(each != 1, kRanksPerHost, "0, or at least 2, with hierarchy by_host",
          each);
}

// Ranks take local steps without communication, so the inner optimizer must not
// exchange anything.
void check_outer_and_rest(const Config& config) {
  if (config.outer.sync_every == 0) return;
  constexpr std::string_view kWith = "an outer loop (thinwire.outer)";
  const auto with = [&](std::string_view range) {
    return fmt::format("{} with {}", range, kWith);
  };
  const auto* onebit = std::get_if<optim::OnebitAdamOptions>(&config.optimizer);
  require(is_exact(config) || onebit != nullptr, "optimizer",
          with("adam, lamb or onebit_adam"), name_of(config.optimizer));
  require_corrected(config, kWith);
  require(config.zero.stage == 0, kStage,
          with("0") + ": its owners shard by themselves", config.zero.stage);
  require(config.experts().empty(), "optimizer.groups",
          with("without a communicator"), config.experts().size());
  require(config.precision.master_dtype == DType::kFloat32,
          "precision.master_dtype", with("float32"),
          to_string(config.precision.master_dtype));
  require(config.precision.state_dtype == DType::kFloat32,
          "precision.state_dtype", with("float32"),
          to_string(config.precision.state_dtype));
  require(!config.lagged_clipping, "lagged_clipping", with("false"), true);
  require(!config.comm.compressed_under_next_step, kUnderNextStep,
          with("false"), true);
  require(config.fallback != Fallback::kHold, "fallback", with("off or warn"),
          "hold");
  if (onebit == nullptr) return;
  const std::int64_t freeze_step = optim::freeze_step_of(onebit->freeze);
  require(freeze_step >= 1, "freeze_step", with("a number of steps"),
          "automatic");
  require(!onebit->freeze.warmup_bits, "warmup_bits",
          with("unset, because outer.warmup_bits counts,"),
          onebit->freeze.warmup_bits.value_or(0));
  require(config.outer.warmup_steps == 0 ||
              config.outer.warmup_steps == freeze_step,
          "outer.warmup_steps",
          fmt::format("left out, or {}: onebit_adam inside warms up until its "
                      "freeze_step",
                      freeze_step),
          config.outer.warmup_steps);
}

}  // namespace

void check_under_next_step(const Config& config) {
  if (!config.comm.compressed_under_next_step) return;
  require(config.zero.stage == 0, kUnderNextStep, "false with ZeRO", true);
  require(uses<optim::OnebitAdamOptions>(config), kUnderNextStep,
          "false unless the optimizer is onebit_adam", true);
  require_corrected(config, kUnderNextStep);
}

bool residuals_add_up(const Config& config, int world) {
  if (config.zero.stage != 2 || config.zero.wire.bits_up == 0) return false;
  return !config.managed_gradient_accumulation ||
         config.batch(world).accumulation_steps != 1;
}

// Low-bit optimizers average experts exactly. Options that know nothing of
// other parameters are therefore refused.
void check_experts(const Config& config) {
  if (config.experts().empty()) return;
  constexpr std::string_view kWith = "groups with a communicator of their own";
  require_corrected(config, kWith);
  require(!uses<lean::LeanOnebitAdamOptions>(config), "optimizer",
          fmt::format("another one than lean_onebit_adam with {}: use "
                      "onebit_adam",
                      kWith),
          name_of(config.optimizer));
  require(!config.comm.compressed_under_next_step, kUnderNextStep,
          fmt::format("false with {}", kWith), true);
}

void check_combinations(const Config& config, int world) {
  check_average(config);
  check_optimizer_and_zero(config);
  check_wire_and_rest(config, world);
  check_lean(config);
  check_hierarchy(config, world);
  check_outer_and_rest(config);
  check_experts(config);
  if (config.lagged_clipping) require_corrected(config, "lagged_clipping");
  if (config.fallback == Fallback::kHold)
    require_corrected(config, "fallback hold");
}

}  // namespace thinwire::config
