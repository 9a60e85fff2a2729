// SPDX-License-Identifier: Apache-2.0
#include "kernels/checks.h"

#include <string>

#include "core/require.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::kernels {
namespace {

void require_float(const std::string& name, DType dtype) {
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 &&
      dtype != DType::kBFloat16) {
    reject(name + ": dtype must be float32, float16 or bfloat16, got " +
           to_string(dtype));
  }
}

void require_float(const std::string& name, ConstView values) {
  if (values.is_joined()) reject(name + ": must be of one dtype, got two");
  require_float(name, values.dtype());
}

void require_size(const std::string& name, std::size_t want, std::size_t have) {
  if (have != want) {
    reject(name + ": must have " + std::to_string(want) + " elements, got " +
           std::to_string(have));
  }
}

void require_stride(std::size_t p_stride, std::size_t rows) {
  require(p_stride >= rows, "p_stride", "at least " + std::to_string(rows),
          p_stride);
}

}  // namespace

void require_chunks(ConstView values, std::size_t sums) {
  require_float("values", values);
  require_size("sums", sum_chunks(values.size()), sums);
}

void require_floats(const char* name, ConstView values, std::size_t size) {
  require_float(name, values);
  require_size(name, size, values.size());
}

void require_grads(ConstView grads) { require_float("grads", grads); }

void require_lamb_sums(ConstView grads, std::size_t first_chunk,
                       std::size_t sums) {
  require_grads(grads);
  if (first_chunk < 1 || first_chunk > kSumChunk) {
    reject("first_chunk: must be in [1, " + std::to_string(kSumChunk) +
           "], got " + std::to_string(first_chunk));
  }
  // Counts the first chunk as if it were full.
  const std::size_t missing = kSumChunk - first_chunk;
  require_size("sums", grads.empty() ? 0 : sum_chunks(missing + grads.size()),
               sums);
}

void require_low_precision(const View& low_precision, std::size_t size) {
  if (low_precision.empty()) return;
  const DType dtype = low_precision.dtype();
  require(dtype == DType::kFloat16 || dtype == DType::kBFloat16,
          "low_precision: dtype", "float16 or bfloat16", to_string(dtype));
  require_size("low_precision", size, low_precision.size());
}

void require_bits(int bits) {
  require(bits == 4 || bits == 8, "bits:", "4 or 8", bits);
}

void require_quantized_sum(const QuantizedSum& sum) {
  const DType dtype = sum.residual.dtype();
  require(dtype == DType::kFloat32 || dtype == DType::kBFloat16,
          "residual: dtype", "float32 or bfloat16", to_string(dtype));
  if (sum.error.dtype() != dtype) {
    reject(std::string("error: dtype must be that of the residual, ") +
           to_string(dtype) + ", got " + to_string(sum.error.dtype()));
  }
  if (sum.residual.size() > kMostSummed) {
    reject("residual: must have at most " + std::to_string(kMostSummed) +
           " elements, got " + std::to_string(sum.residual.size()));
  }
  require_size("error", sum.residual.size(), sum.error.size());
  if (!sum.values.empty()) {
    require_floats("values", sum.values, sum.residual.size());
  }
}

void require_scaled(ConstView sum, ConstView values) {
  require(sum.dtype() == DType::kFloat32, "sum: dtype", "float32",
          to_string(sum.dtype()));
  require_floats("values", values, sum.size());
}

void require_low_rank(std::size_t rank) {
  require(rank >= 1 && rank <= kMostLowRank, "rank",
          "in [1, " + std::to_string(kMostLowRank) + "]", rank);
}

void require_low_rank_rows(const LowRankRows& in, std::size_t rank,
                           std::size_t p_stride) {
  require_low_rank(rank);
  require_floats("in.values", in.values, in.rows * in.columns);
  require_stride(p_stride, in.rows);
}

void require_low_rank_columns(std::size_t columns, std::size_t rank,
                              std::size_t begin, std::size_t end) {
  require_low_rank(rank);
  require(end <= columns, "end", "at most " + std::to_string(columns), end);
  require(begin <= end, "begin", "at most " + std::to_string(end), begin);
}

void require_low_rank_product(std::size_t p_stride, std::size_t rank,
                              std::size_t rows, std::size_t columns,
                              ConstView values) {
  require_low_rank(rank);
  require_floats("values", values, rows * columns);
  require_stride(p_stride, rows);
}

void require_coded_update(const MomentumForm& m,
                          const CodedUpdateArrays& arrays) {
  require_bits(arrays.bits);
  require_momentum("m", m, arrays.size);
  const bool split = arrays.high != nullptr && arrays.low != nullptr;
  if (arrays.size != 0 && arrays.params == nullptr && !split) {
    reject("arrays: needs params, or high and low, got neither");
  }
}

void require_momentum(const char* name, const MomentumForm& form,
                      std::size_t size) {
  if (size != 0 && form.values == nullptr && form.signs.words == nullptr) {
    reject(std::string(name) + ": needs values or signs, got neither");
  }
}

void require_input(const SignInput& input, std::size_t size) {
  if (input.values != nullptr || input.grads.empty()) return;
  require_grads(input.grads);
  require_size("input.grads", size, input.grads.size());
  if (input.coefficients == nullptr) {
    reject("input.coefficients: must be given with grads, got null");
  }
  if (input.exp_avg == nullptr && input.mean.words == nullptr) {
    reject("input: grads need exp_avg or mean, got neither");
  }
}

void require_block(const SignBlock& block) {
  const View& residual = block.residual;
  if (residual.dtype() == DType::kFloat32) return;
  require(residual.dtype() == DType::kBFloat16, "block.residual: dtype",
          "float32 or bfloat16", to_string(residual.dtype()));
  if (residual.size() > kMostRoundedElements) {
    reject("block.residual: must have at most " +
           std::to_string(kMostRoundedElements) +
           " elements of bfloat16, got " + std::to_string(residual.size()));
  }
}

}  // namespace thinwire::kernels
