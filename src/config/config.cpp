// SPDX-License-Identifier: Apache-2.0
#include "thinwire/config/config.h"

#include <fmt/format.h>

#include "config/checks.h"

namespace thinwire::config {

namespace {

template <class Options>
inline constexpr bool kIsLowBit = requires(Options o) {
  o.compression;
};

}  // namespace

std::string_view name_of(const OptimizerConfig& optimizer) noexcept {
  constexpr std::string_view kNames[] = {"adam",          "lamb",
                                         "onebit_adam",   "onebit_lamb",
                                         "zero_one_adam", "lean_onebit_adam"};
  static_assert(std::size(kNames) == std::variant_size_v<OptimizerConfig>);
  return kNames[optimizer.index()];
}

std::string describe(const KeyNote& note) {
  constexpr std::string_view kWhat[] = {"supported", "ignored (no effect)",
                                        "absent", "rejected"};
  std::string text = fmt::format("{}: {}", note.path,
                                 kWhat[static_cast<std::size_t>(note.kind)]);
  const bool supported = note.kind == KeyNote::Kind::kSupported;
  if (!note.note.empty()) text += (supported ? ", " : ": ") + note.note;
  return text;
}

zero::WireOptions Config::wire_options(int world) const {
  zero::WireOptions wire = zero.wire;
  if (!wire.residual_dtype && residuals_add_up(*this, world))
    wire.residual_dtype = DType::kFloat32;
  return wire;
}

optim::ExchangeOptions Config::exchange_options() const {
  return {.max_grad_norm = gradient_clipping,
          .lagged_clipping = lagged_clipping,
          .under_next_step = comm.compressed_under_next_step,
          .bucket_elements = comm.bucket_elements,
          .verify_every = comm.verify_every,
          .skip_nonfinite = precision.check_grad_overflow,
          .num_threads = comm.num_threads};
}

OptimizerConfig Config::optimizer_options() const {
  OptimizerConfig resolved = optimizer;
  std::visit(
      [this]<class Options>(Options& options) {
        if constexpr (kIsLowBit<Options>)
          options.compression.exchange = exchange_options();
      },
      resolved);
  return resolved;
}

outer::OuterOptions Config::outer_options() const {
  outer::OuterOptions resolved = outer;
  if (const auto* onebit = std::get_if<optim::OnebitAdamOptions>(&optimizer))
    resolved.warmup_steps = optim::freeze_step_of(onebit->freeze);
  return resolved;
}

std::vector<optim::ExpertGroup> Config::experts() const {
  return std::visit(
      [](const auto& options) { return optim::expert_groups(options.groups); },
      optimizer);
}

}  // namespace thinwire::config
