// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/core/view.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/denominator_codes.h"
#include "thinwire/kernels/lamb.h"
#include "thinwire/kernels/low_rank.h"
#include "thinwire/kernels/quantize.h"
#include "thinwire/kernels/sign_compress.h"

/// Checks that the reference and the fast kernels share and run before they
/// write anything. Each throws Error(kInvalidArgument).
namespace thinwire::kernels {

/// `values` holds fp32, fp16 or bf16 in as many chunks as there are `sums`.
void require_chunks(ConstView values, std::size_t sums);

/// `values`, the argument called `name`, holds `size` elements of fp32, fp16 or
/// bf16.
void require_floats(const char* name, ConstView values, std::size_t size);

/// `grads` holds fp32, fp16 or bf16.
void require_grads(ConstView grads);

/// `grads` holds fp32, fp16 or bf16 in as many chunks as there are `sums`,
/// where the first one has `first_chunk` elements.
void require_lamb_sums(ConstView grads, std::size_t first_chunk,
                       std::size_t sums);

/// `low_precision` is empty, or `size` elements of fp16 or bf16.
void require_low_precision(const View& low_precision, std::size_t size);

/// `bits` is a width that quantize.h has codes of.
void require_bits(int bits);

/// Sizes and dtypes of quantize_sum() and add_scaled().
void require_quantized_sum(const QuantizedSum& sum);
void require_scaled(ConstView sum, ConstView values);

/// `rank` is in [1, kMostLowRank].
void require_low_rank(std::size_t rank);
/// Ranks, sizes and dtypes of the functions of low_rank.h.
void require_low_rank_rows(const LowRankRows& in, std::size_t rank,
                           std::size_t p_stride);
void require_low_rank_columns(std::size_t columns, std::size_t rank,
                              std::size_t begin, std::size_t end);
void require_low_rank_product(std::size_t p_stride, std::size_t rank,
                              std::size_t rows, std::size_t columns,
                              ConstView values);

/// The update has a momentum, codes of such a width, and one form of the
/// parameters.
void require_coded_update(const MomentumForm& m,
                          const CodedUpdateArrays& arrays);

/// `form`, the argument called `name`, has values or signs, unless it is empty.
void require_momentum(const char* name, const MomentumForm& form,
                      std::size_t size);

/// `input` has one of its forms, for a block of `size` elements.
void require_input(const SignInput& input, std::size_t size);

/// The block's residual is float32, or bfloat16 of at most
/// kMostRoundedElements.
void require_block(const SignBlock& block);

}  // namespace thinwire::kernels
