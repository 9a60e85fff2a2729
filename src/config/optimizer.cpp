// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <variant>

#include "config/fields.h"
#include "config/sections.h"
#include "thinwire/core/error.h"

namespace thinwire::config {

namespace {

// Returns whether this is lean 1-bit Adam, which keeps low-bit denominators
// instead of a variance.
bool is_lean(const Reader& own) {
  bool lean = false;
  own.field("lean", lean);
  if (!lean && own.has("denominator_bits"))
    own.exclude("denominator_bits", "left out unless thinwire.lean is true");
  return lean;
}

void read_decay(const Reader& optimizer, const Reader& params,
                optim::AdamOptions& options) {
  params.field("adam_w_mode", options.decoupled_decay);
  // With type "AdamW", or without a type, the decay must be decoupled.
  if (!optimizer.is_text("type", "adam") && !options.decoupled_decay)
    params.exclude("adam_w_mode", "true with AdamW; L2 decay is type Adam's");
}

// Reads how gradients are averaged, with ZeRO or without.
void read_exact(const Reader& own, Config& config) {
  average_fields(own, config.average);
  wire_fields(own, config.zero.wire);
}

// Leaves out the keys of averages if all have their defaults, because earlier
// versions lack these keys. See write.cpp.
void write_exact(const Writer& own, const Config& config) {
  if (config.average != optim::AverageOptions{})
    average_fields(own, config.average);
  wire_fields(own, config.zero.wire);
}

void read_freeze(const Reader& params, const Reader& own, Semantics semantics,
                 optim::FreezeOptions& freeze) {
  bool is_automatic = false;
  own.field("auto_freeze", is_automatic);
  if (is_automatic && params.has("freeze_step"))
    params.exclude("freeze_step", "left out if thinwire.auto_freeze is true");
  params.field("freeze_step", freeze.step,
               semantics == Semantics::kDeepSpeed ? kNotNegative : kAtLeastOne);
  if (is_automatic) freeze.step = optim::kAutoFreeze;
}

}  // namespace

OptimizerConfig default_optimizer(std::size_t index) {
  const OptimizerConfig all[] = {
      optim::AdamOptions{},        optim::LambOptions{},
      optim::OnebitAdamOptions{},  optim::OnebitLambOptions{},
      optim::ZeroOneAdamOptions{}, lean::LeanOnebitAdamOptions{}};
  static_assert(std::extent_v<decltype(all)> ==
                std::variant_size_v<OptimizerConfig>);
  return all[index];
}

void read_optimizer(const Reader& file, Config& config) {
  const Reader section = file.section("optimizer");
  const Reader params = section.section("params");
  const Reader own = file.section("thinwire");
  std::size_t index = 0;
  section.choice("type", index, Choices<std::size_t>(kOptimizerTypes));
  if (index == kOnebitAdamIndex && is_lean(own)) index = kLeanIndex;
  config.optimizer = default_optimizer(index);
  std::visit(
      [&]<class Options>(Options& options) {
        optimizer_fields(params, own, options);
        if constexpr (requires { options.decoupled_decay; })
          read_decay(section, params, options);
        if constexpr (requires { options.freeze; })
          read_freeze(params, own, config.semantics, options.freeze);
        if constexpr (requires { options.compression; })
          params.choice("comm_backend_name", config.comm.backend,
                        Choices<CommBackend>(kCommBackends));
        else
          read_exact(own, config);
      },
      config.optimizer);
}

void write_optimizer(const Writer& file, const Writer& own,
                     const Config& config) {
  const Writer section = file.section("optimizer");
  const std::size_t index = config.optimizer.index();
  const bool lean = index == kLeanIndex;
  section.field("type", kOptimizerTypes[lean ? kOnebitAdamIndex : index].first);
  if (lean) own.field("lean", true);
  const Writer params = section.section("params");
  std::visit(
      [&]<class Options>(const Options& options) {
        if (!options.groups.empty())
          throw Error(ErrorCode::kInvalidArgument,
                      "optimizer.groups must be empty to be written: a file "
                      "knows no groups of parameters");
        optimizer_fields(params, own, options);
        if constexpr (requires { options.decoupled_decay; })
          params.field("adam_w_mode", options.decoupled_decay);
        if constexpr (requires { options.compression; })
          params.choice("comm_backend_name", config.comm.backend,
                        Choices<CommBackend>(kCommBackends));
        else
          write_exact(own, config);
        if constexpr (requires { options.freeze; }) {
          const bool is_automatic =
              options.freeze.step.value_or(0) == optim::kAutoFreeze;
          own.field("auto_freeze", is_automatic);
          if (!is_automatic)
            params.field("freeze_step", options.freeze.step, kNotNegative);
        }
      },
      config.optimizer);
}

}  // namespace thinwire::config
