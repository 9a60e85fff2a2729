// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/require.h"
#include "optim/checks.h"
#include "thinwire/shard/zero_optimizer.h"

namespace thinwire::shard {

namespace {

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || optim::is_16_bit(dtype);
}

void require_dtype(bool holds, std::string_view name, const std::string& range,
                   DType dtype) {
  require(holds, name, range, to_string(dtype));
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
  const DType wire = communication_dtype.value_or(dtype);
  require_dtype(is_float(wire), "communication_dtype",
                "float32, float16 or bfloat16", wire);
  exchange.validate();
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
  for (const ExpertGroup& expert : experts)
    text += fmt::format("experts in group {}\n", expert.group);
  return text;
}

}  // namespace thinwire::shard
