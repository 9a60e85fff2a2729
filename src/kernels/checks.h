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
/// write anything. Each throws Error(kInvalidArgument) unless its comment
/// holds.
namespace thinwire::kernels {

/// `values` holds fp32, fp16 or bf16, and one chunk per sum.
void require_chunks(ConstView values, std::size_t sums);

/// `values`, the argument called `name`, holds `size` elements of fp32, fp16 or
/// bf16.
void require_floats(const char* name, ConstView values, std::size_t size);

/// `grads` holds fp32, fp16 or bf16.
void require_grads(ConstView grads);

/// `grads` holds fp32, fp16 or bf16, and one chunk per sum. The first chunk has
/// `first_chunk` elements.
void require_lamb_sums(ConstView grads, std::size_t first_chunk,
                       std::size_t sums);

/// `low_precision` is empty or has `size` elements in fp16 or bf16.
void require_low_precision(const View& low_precision, std::size_t size);

/// `bits` is a width for which quantize.h defines codes.
void require_bits(int bits);

/// Sizes and dtypes are those that quantize_sum() and add_scaled() accept.
void require_quantized_sum(const QuantizedSum& sum);
void require_scaled(ConstView sum, ConstView values);

/// `rank` is in [1, kMostLowRank].
void require_low_rank(std::size_t rank);
/// Ranks, sizes and dtypes are those that the functions of low_rank.h accept.
void require_low_rank_rows(const LowRankRows& in, std::size_t rank,
                           std::size_t p_stride);
void require_low_rank_columns(std::size_t columns, std::size_t rank,
                              std::size_t begin, std::size_t end);
void require_low_rank_product(std::size_t p_stride, std::size_t rank,
                              std::size_t rows, std::size_t columns,
                              ConstView values);

/// The update has a momentum, codes of `bits` bits, and one form of the
/// parameters.
void require_coded_update(const MomentumForm& m,
                          const CodedUpdateArrays& arrays);

/// `form`, the argument called `name`, is empty or has either values or signs.
void require_momentum(const char* name, const MomentumForm& form,
                      std::size_t size);

/// `input` has exactly one of its forms, for a block of `size` elements.
void require_input(const SignInput& input, std::size_t size);

/// The block's residual is fp32, or bf16 with at most kMostRoundedElements.
void require_block(const SignBlock& block);

}  // namespace thinwire::kernels
