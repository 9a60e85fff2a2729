// SPDX-License-Identifier: Apache-2.0
#include "comm/arguments.h"

#include <fmt/format.h>

#include <functional>

#include "core/require.h"

namespace thinwire::comm::arguments {
void require_memory(std::string_view call, std::string_view argument,
                    ConstView view) {
  if (view.data() == nullptr && !view.empty()) {
    reject(fmt::format(
        "{}: {} must not be null, got a null pointer to {} elements", call,
        argument, view.size()));
  }
}

void require_reducible(std::string_view call, ReduceOp op, DType dtype) {
  const bool is_integer = dtype == DType::kInt32 || dtype == DType::kInt64 ||
                          dtype == DType::kUInt8;
  if (op == ReduceOp::kMean && is_integer) {
    reject(fmt::format(
        "{}: dtype must be float32, float16, bfloat16 or float64 for kMean, "
        "got {}",
        call, to_string(dtype)));
  }
}

void require_same_dtype(std::string_view call, ConstView input, View output) {
  if (input.dtype() != output.dtype()) {
    reject(fmt::format("{}: output must have the dtype of input, {}, got {}",
                       call, to_string(input.dtype()),
                       to_string(output.dtype())));
  }
}

void require_same_or_wider(std::string_view call, ReduceOp op, ConstView input,
                           View output) {
  const bool is_short =
      input.dtype() == DType::kFloat16 || input.dtype() == DType::kBFloat16;
  if (!is_short) return require_same_dtype(call, input, output);
  if (output.dtype() == input.dtype()) return;
  if (output.dtype() != DType::kFloat32) {
    reject(fmt::format(
        "{}: output must have the dtype of input, {}, or float32, got {}", call,
        to_string(input.dtype()), to_string(output.dtype())));
  }
  if (op == ReduceOp::kMax) {
    reject(fmt::format(
        "{}: op must be kSum or kMean for {} into float32, got kMax", call,
        to_string(input.dtype())));
  }
}

void require_multiple(std::string_view call, std::string_view large_name,
                      std::size_t large, std::string_view small_name,
                      std::size_t small, int world_size) {
  const auto ranks = static_cast<std::size_t>(world_size);
  if (large % ranks != 0 || large / ranks != small) {
    reject(fmt::format(
        "{}: {}.size() must be size() * {}.size() = {} * {}, got {}", call,
        large_name, small_name, ranks, small, large));
  }
}

void require_counts(std::string_view call, std::string_view counts_name,
                    std::span<const std::size_t> counts, int world_size,
                    std::string_view view_name, std::size_t view_size) {
  if (counts.size() != static_cast<std::size_t>(world_size)) {
    reject(fmt::format("{}: {}.size() must be size() = {}, got {}", call,
                       counts_name, world_size, counts.size()));
  }
  std::size_t left = view_size;
  for (const std::size_t count : counts) {
    if (count > left) {
      reject(fmt::format("{}: {} must add up to {}.size() = {}, got more", call,
                         counts_name, view_name, view_size));
    }
    left -= count;
  }
  if (left != 0) {
    reject(fmt::format("{}: {} must add up to {}.size() = {}, got {}", call,
                       counts_name, view_name, view_size, view_size - left));
  }
}

void require_equal(std::string_view call, std::string_view name,
                   std::size_t value, std::string_view wanted_name,
                   std::size_t wanted) {
  if (value != wanted)
    reject(fmt::format("{}: {} must be {} = {}, got {}", call, name,
                       wanted_name, wanted, value));
}

void require_no_overlap(std::string_view call, ConstView input,
                        ConstView output) {
  if (input.empty() || output.empty()) return;
  const auto* in = static_cast<const std::byte*>(input.data());
  const auto* out = static_cast<const std::byte*>(output.data());
  const std::less<const std::byte*> before;  // total, also between arrays
  if (before(in, out + output.bytes()) && before(out, in + input.bytes()))
    reject(fmt::format(
        "{}: input and output must not overlap, got memory that does", call));
}

}  // namespace thinwire::comm::arguments
