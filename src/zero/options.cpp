// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "core/require.h"
#include "exchange/codec/codec.h"
#include "optim/checks.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::zero {

using optim::require_dtype;
using optim::require_model_dtype;

namespace {

void require_fits_wire(const ZeroOptions& options) {
  const WireOptions& wire = options.wire;
  if (wire.is_exact()) return;
  require(wire.bits_up == 0 || !options.communication_dtype,
          "communication_dtype", "unset with wire.bits_up",
          options.communication_dtype ? to_string(*options.communication_dtype)
                                      : "");
}

}  // namespace

void WireOptions::validate(std::string_view name_up, std::string_view name_down,
                           std::string_view name_dtype) const {
  for (const auto& [name, bits] :
       {std::pair{name_up, bits_up}, std::pair{name_down, bits_down}})
    exchange::require_bits_or_exact(
        name, bits, " (for fewer bits use OneBitAdam with thinwire.lean)");
  require_dtype(
      residuals() == DType::kFloat32 || residuals() == DType::kBFloat16,
      name_dtype, "float32 or bfloat16", residuals());
}

void ZeroOptions::validate() const {
  require(stage == 1 || stage == 2, "stage", "1 or 2", stage);
  require_model_dtype("dtype", dtype);
  const std::string or_own = fmt::format("float32 or {}", to_string(dtype));
  require_dtype(master_dtype == DType::kFloat32 || master_dtype == dtype,
                "master_dtype", or_own, master_dtype);
  require_dtype(
      accumulation_dtype == DType::kFloat32 || accumulation_dtype == dtype,
      "accumulation_dtype", or_own, accumulation_dtype);
  require_model_dtype("communication_dtype",
                      communication_dtype.value_or(dtype));
  exchange.validate();
  wire.validate("wire.bits_up", "wire.bits_down", "wire.residual_dtype");
  require_fits_wire(*this);
  if (dtype == DType::kFloat16) loss_scale.validate();
}

std::string ZeroOptions::describe() const {
  std::string text = fmt::format(
      "stage={} dtype={} master_dtype={} communication_dtype={} "
      "accumulation_dtype={} average={} overlap={} {}\n{}",
      stage, to_string(dtype), to_string(master_dtype),
      to_string(communication_dtype.value_or(dtype)),
      to_string(accumulation_dtype), average, overlap, loss_scale.describe(),
      exchange.describe());
  if (!wire.is_exact())
    text += fmt::format(
        "bits_up={} bits_down={} residual_dtype={} keeps_residuals={}\n",
        wire.bits_up, wire.bits_down, to_string(wire.residuals()),
        wire.keeps_residuals(dtype));
  for (const ExpertGroup& expert : experts)
    text += fmt::format("experts in group {}\n", expert.group);
  return text;
}

}  // namespace thinwire::zero
