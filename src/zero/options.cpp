// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/require.h"
#include "optim/checks.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::zero {

namespace {

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || is_16_bit(dtype);
}

void require_dtype(bool holds, std::string_view name, const std::string& range,
                   DType dtype) {
  require(holds, name, range, to_string(dtype));
}

void require_wire(const ZeroOptions& options) {
  const WireOptions& wire = options.wire;
  const auto require_bits = [](const char* name, int bits) {
    if (bits >= 1 && bits <= 3)
      reject(
          fmt::format("{} must be 0, 4 or 8, got {}: for fewer bits use "
                      "OneBitAdam with thinwire.lean",
                      name, bits));
    require(bits == 0 || bits == 4 || bits == 8, name, "0, 4 or 8", bits);
  };
  require_bits("wire.bits_up", wire.bits_up);
  require_bits("wire.bits_down", wire.bits_down);
  require_dtype(wire.residuals() == DType::kFloat32 ||
                    wire.residuals() == DType::kBFloat16,
                "wire.residual_dtype", "float32 or bfloat16", wire.residuals());
  if (wire.is_exact()) return;
  if (options.offload)
    throw Error(ErrorCode::kUnavailable,
                "offload: not together with wire.bits_up or wire.bits_down");
  require(wire.bits_up == 0 || !options.communication_dtype,
          "communication_dtype", "unset with wire.bits_up",
          options.communication_dtype ? to_string(*options.communication_dtype)
                                      : "");
}

}  // namespace

void ZeroOptions::validate() const {
  require(stage == 1 || stage == 2, "stage", "1 or 2", stage);
  require_dtype(is_float(dtype), "dtype", "float32, float16 or bfloat16",
                dtype);
  const std::string or_own = fmt::format("float32 or {}", to_string(dtype));
  require_dtype(master_dtype == DType::kFloat32 || master_dtype == dtype,
                "master_dtype", or_own, master_dtype);
  require_dtype(
      accumulation_dtype == DType::kFloat32 || accumulation_dtype == dtype,
      "accumulation_dtype", or_own, accumulation_dtype);
  const DType sent = communication_dtype.value_or(dtype);
  require_dtype(is_float(sent), "communication_dtype",
                "float32, float16 or bfloat16", sent);
  exchange.validate();
  require_wire(*this);
  if (dtype == DType::kFloat16) loss_scale.validate();
}

std::string ZeroOptions::describe() const {
  std::string text = fmt::format(
      "stage={} dtype={} master_dtype={} communication_dtype={} "
      "accumulation_dtype={} average={} overlap={} offload={} {}\n{}",
      stage, to_string(dtype), to_string(master_dtype),
      to_string(communication_dtype.value_or(dtype)),
      to_string(accumulation_dtype), average, overlap, offload,
      loss_scale.describe(), exchange.describe());
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
