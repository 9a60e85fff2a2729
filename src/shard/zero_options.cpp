// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "optim/checks.h"
#include "thinwire/shard/zero_optimizer.h"

namespace thinwire::shard {

using optim::Semantics;

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
  if (semantics == Semantics::kDeepSpeed) {
    require(!offload, "offload", "false with deepspeed semantics", true);
    require(experts.empty(), "experts", "empty with deepspeed semantics",
            experts.size());
    require_dtype(master_dtype == DType::kFloat32, "master_dtype",
                  "float32 with deepspeed semantics", master_dtype);
    return;
  }
  require(!round_robin, "round_robin",
          "false with corrected semantics, where every bucket loads all ranks "
          "alike",
          true);
  require(reduce_scatter, "reduce_scatter",
          "true with corrected semantics, which know no other way", false);
}

std::string ZeroOptions::describe() const {
  std::string text = fmt::format(
      "stage={} dtype={} master_dtype={} communication_dtype={} "
      "accumulation_dtype={} average={} overlap={} offload={} semantics={} "
      "round_robin={} reduce_scatter={} loss_scale={}/{}/{}/{}/{}/{}/{}/{}\n{}",
      stage, to_string(dtype), to_string(master_dtype),
      to_string(communication_dtype.value_or(dtype)),
      to_string(accumulation_dtype), average, overlap, offload,
      to_string(semantics), round_robin, reduce_scatter,
      loss_scale.initial_scale, loss_scale.dynamic, loss_scale.window,
      loss_scale.hysteresis, loss_scale.consecutive_hysteresis,
      loss_scale.min_scale, loss_scale.max_scale,
      loss_scale.at_minimum == precision::AtMinimum::kStop ? "stop" : "hold",
      exchange.describe());
  for (const ExpertGroup& expert : experts)
    text += fmt::format("experts in group {}\n", expert.group);
  return text;
}

}  // namespace thinwire::shard
