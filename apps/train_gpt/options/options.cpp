// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt {

std::int64_t default_freeze_step(std::int64_t steps,
                                 std::int64_t warmup_steps) {
  return std::max({std::int64_t{1}, steps / 5, warmup_steps});
}

std::vector<std::pair<std::string, std::string>> settings_of(
    const Options& options) {
  const std::string freeze = options.freeze_step == optim::kAutoFreeze
                                 ? "auto"
                                 : fmt::to_string(options.freeze_step);
  std::vector<std::pair<std::string, std::string>> settings = {
      {"optimizer", options.optimizer},
      {"semantics", std::string(to_string(options.semantics))},
      {"freeze_step", freeze},
      {"var_freeze_step", fmt::to_string(options.var_freeze_step)},
      {"local_steps", fmt::to_string(options.local_steps)},
      {"precision", std::string(precision_name(options.precision))},
      {"zero", fmt::to_string(options.zero)},
      {"offload", options.offload ? "true" : "false"},
      {"steps", fmt::to_string(options.steps)},
      {"context", fmt::to_string(options.context)},
      {"layers", fmt::to_string(options.layers)},
      {"width", fmt::to_string(options.width)},
      {"heads", fmt::to_string(options.heads)},
      {"lr", fmt::to_string(options.lr)},
      {"weight_decay", fmt::to_string(options.weight_decay)},
      {"clip", fmt::to_string(options.clip)},
      {"seed", fmt::to_string(options.seed)}};
  // What decides which loss is reported, if it is not the default.
  if (options.validate_every)
    settings.emplace_back("validate_every",
                          fmt::to_string(*options.validate_every));
  if (options.validate_bytes != Options().validate_bytes)
    settings.emplace_back("validate_bytes",
                          fmt::to_string(options.validate_bytes));
  // Where a file decides, it is written beside these.
  if (!options.file_sizes) {
    settings.emplace_back("batch", fmt::to_string(options.batch));
    settings.emplace_back("accumulate", fmt::to_string(options.accumulate));
  }
  if (!options.file_schedules)
    settings.emplace_back("warmup_steps", fmt::to_string(options.warmup_steps));
  if (!options.set.empty())
    settings.emplace_back("set", nlohmann::json(options.set).dump());
  return settings;
}

namespace {

constexpr std::pair<std::string_view, DType> kPrecisions[] = {
    {"fp32", DType::kFloat32},
    {"fp16", DType::kFloat16},
    {"bf16", DType::kBFloat16}};

}  // namespace

std::string_view precision_name(DType dtype) noexcept {
  for (const auto& [name, known] : kPrecisions)
    if (known == dtype) return name;
  return "unknown";
}

std::optional<DType> precision_from(std::string_view name) noexcept {
  for (const auto& [known, dtype] : kPrecisions)
    if (known == name) return dtype;
  return std::nullopt;
}

}  // namespace thinwire::train_gpt
