// SPDX-License-Identifier: Apache-2.0
#include "exchange/checks.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "core/require.h"
#include "exchange/codec/codec.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::exchange {

void require_options(const comm::Communicator& comm,
                     const BlockOptions& options, DType residual_dtype) {
  require(options.world_size == comm.size(), "BlockOptions.world_size",
          fmt::format("the communicator's {}", comm.size()),
          options.world_size);
  require(
      residual_dtype == DType::kBFloat16 || residual_dtype == DType::kFloat32,
      "residual_dtype", "float32 or bfloat16", to_string(residual_dtype));
}

void require_options(const LowBitMeanOptions& options) {
  require_bits("LowBitMeanOptions.bits", options.bits);
  require(options.residual_dtype == DType::kFloat32 ||
              options.residual_dtype == DType::kBFloat16,
          "LowBitMeanOptions.residual_dtype", "fp32 or bf16",
          to_string(options.residual_dtype));
}

void require_float(std::string_view name, DType dtype) {
  require(dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
              dtype == DType::kBFloat16,
          name, "fp32, fp16 or bf16", to_string(dtype));
}

void require_loss_scale(std::string_view name, double loss_scale) {
  // The exchange multiplies by the loss scale and by its inverse, in fp32.
  require(loss_scale >= 0x1p-126 && loss_scale <= 0x1p127, name,
          "in [2^-126, 2^127]", loss_scale);
}

void require_residual(std::string_view name, ConstView given, DType dtype,
                      std::size_t size) {
  if (given.dtype() != dtype || given.size() != size)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("{} must be {} of {} elements, got {} of {}", name,
                            to_string(dtype), size, to_string(given.dtype()),
                            given.size()));
}

void require_groups(const comm::Communicator& comm,
                    const comm::HostGroups* groups) {
  if (groups == nullptr) return;
  const int inside = groups->inside->size();
  const int between = groups->between->size();
  if (inside * between != comm.size())
    reject(
        fmt::format("groups must split the communicator's {} ranks, got {} "
                    "hosts of {}",
                    comm.size(), between, inside));
}

void require_inside(const BlockLayout& layout, std::size_t size) {
  for (const Block& block : layout.blocks())
    detail::require_range(block.values.offset, block.values.size, size);
}

int find_nonfinite(comm::Communicator& comm, const BlockLayout& layout,
                   const Places& places, std::span<const float> values) {
  double sum = 0;
  for (const Block& block : layout.blocks())
    if (places.has(block))
      sum += kernels::sum_of_squares(
          values.subspan(block.values.offset, block.values.size));
  std::vector<double> sums(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&sum, 1), sums);
  for (std::size_t r = 0; r < sums.size(); ++r)
    if (!std::isfinite(sums[r])) return static_cast<int>(r);
  return -1;
}

}  // namespace thinwire::exchange
