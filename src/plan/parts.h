// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "exchange/codec/codec.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/plan/planner.h"

/// Parts that the planner's formulas share.
namespace thinwire::plan {

/// Elements of a full block, of a cell.
inline constexpr std::size_t kBlock = kernels::kSumChunk;

/// Bytes that a rank sends to all others before a low-bit step: the square of
/// its gradient's norm, and flags. ZeRO also sends a norm per cell.
inline constexpr std::size_t kScalarBytes = 16;
inline constexpr std::size_t kNormBytes = 8;

/// Returns the columns of a factor, and half of the elements of all factors P
/// and Q. Matrices have none if these are half of their elements or more; the
/// columns are 0 then.
[[nodiscard]] double factor_columns(const Workload& work) noexcept;
[[nodiscard]] double factor_elements(const Workload& work) noexcept;
/// Returns `elements` in blocks of 64, as elements of full blocks with as many
/// bytes in 8 bits.
[[nodiscard]] double in_full_blocks(double elements) noexcept;

/// Bytes of a bucket of torch's DDP.
inline constexpr double kTorchBucketBytes = 25e6;

/// The ranks of one host; and one rank of each host, which has its part of the
/// card.
[[nodiscard]] Network inside_of(const Network& network);
[[nodiscard]] Network between_of(const Network& network);

/// Returns the codec with this number of bits per element, 1 being signs.
[[nodiscard]] const exchange::Codec& codec_with(int bits);
/// Returns the bytes per element in its records of full blocks.
[[nodiscard]] double record_bytes_per_element(int bits);

/// Stages of ZeRO; and in how many bits they send an element, 0: exactly.
[[nodiscard]] bool is_zero(Way way) noexcept;
[[nodiscard]] int zero_bits(Way way) noexcept;
/// Bits of an element on the wire between hosts; exact averages count as fp32.
[[nodiscard]] int wire_bits(Way way) noexcept;
/// How often a step sends gradients to other hosts: ZeRO-2 in full precision
/// with every backward; all others once.
[[nodiscard]] double ups_per_step(Way way, const Workload& work) noexcept;
/// Elements that travel together, of the whole model: the workload's, or the
/// rule's.
[[nodiscard]] double bucket_elements_of(Way way, bool by_host,
                                        const Workload& work,
                                        const Network& network);

/// Returns the times of exchanges of values in few bits, which take `update` to
/// apply.
[[nodiscard]] Compute quantizing(Compute compute, double update);
/// Processor seconds of a step's communication, which do not depend on the
/// network card.
struct Transport {
  double step = 0;
  /// The steps of 0/1 Adam's variance stage, of which `step` is the mean.
  double exact = 0;
  double onebit = 0;
};
[[nodiscard]] Transport transport_of(Way way, bool by_host,
                                     const Workload& work,
                                     const Network& network);
/// The planner's, with it.
[[nodiscard]] double step_seconds(Way way, bool by_host, const Workload& work,
                                  const Network& network,
                                  const Compute& compute,
                                  const Transport& transport);

}  // namespace thinwire::plan
