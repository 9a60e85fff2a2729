// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "deepspeed/rounded_sum.h"
#include "optim/checks.h"
#include "thinwire/deepspeed/loss_scaler.h"
#include "thinwire/deepspeed/zero_optimizer.h"

namespace thinwire::deepspeed {

void ZeroOptions::validate() const {
  const auto require_float = [](std::string_view name, DType given) {
    require(given == DType::kFloat32 || is_16_bit(given), name,
            "float32, float16 or bfloat16", to_string(given));
  };
  require(stage == 1 || stage == 2, "stage", "1 or 2", stage);
  require_float("dtype", dtype);
  require(accumulation_dtype == DType::kFloat32 || accumulation_dtype == dtype,
          "accumulation_dtype", fmt::format("float32 or {}", to_string(dtype)),
          to_string(accumulation_dtype));
  require_float("communication_dtype", communication_dtype.value_or(dtype));
  require_predivide(predivide);
  exchange.validate();
  if (dtype == DType::kFloat16)
    static_cast<void>(loss_scaler(zero_loss_scaler(loss_scale)));
}

std::string ZeroOptions::describe() const {
  return fmt::format(
      "deepspeed stage={} dtype={} communication_dtype={} "
      "accumulation_dtype={} "
      "average={} round_robin={} reduce_scatter={} prescale={} predivide={} "
      "{}\n{}",
      stage, to_string(dtype), to_string(communication_dtype.value_or(dtype)),
      to_string(accumulation_dtype), average, round_robin, reduce_scatter,
      prescale, predivide, loss_scale.describe(), exchange.describe());
}

}  // namespace thinwire::deepspeed
