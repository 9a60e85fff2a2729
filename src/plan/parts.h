// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "exchange/codec/codec.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/plan/planner.h"

/// Helpers that the planner's formulas share.
namespace thinwire::plan {

/// Number of elements in a full block and in a cell.
inline constexpr std::size_t kBlock = kernels::kSumChunk;

/// Bytes that a rank sends to all others before a low-bit step: flags and the
/// square of its gradient's norm. ZeRO also sends a norm per cell.
inline constexpr std::size_t kScalarBytes = 16;
inline constexpr std::size_t kNormBytes = 8;

/// Returns the columns of a factor, and half the number of elements in all
/// factors P and Q. A matrix has no factors, and 0 columns, if they had half of
/// its elements or more.
[[nodiscard]] double factor_columns(const Workload& work) noexcept;
[[nodiscard]] double factor_elements(const Workload& work) noexcept;
/// Converts `elements` in blocks of 64 to the number of elements in full blocks
/// that have the same bytes in 8 bits.
[[nodiscard]] double in_full_blocks(double elements) noexcept;

/// Bytes of a bucket of torch's DDP.
inline constexpr double kTorchBucketBytes = 25e6;

/// Returns the network among the ranks of one host. between_of() returns that
/// of one rank per host, which has its share of the card.
[[nodiscard]] Network inside_of(const Network& network);
[[nodiscard]] Network between_of(const Network& network);

/// Returns the codec with this number of bits per element; 1 stands for signs.
[[nodiscard]] const exchange::Codec& codec_with(int bits);
/// Returns the bytes per element in the codec's records of full blocks.
[[nodiscard]] double record_bytes_per_element(int bits);

/// Return whether a way is a stage of ZeRO, and the bits per element that it
/// sends; 0 stands for an exact exchange.
[[nodiscard]] bool is_zero(Way way) noexcept;
[[nodiscard]] int zero_bits(Way way) noexcept;
/// Returns the bits per element between hosts. Exact averages count as fp32.
[[nodiscard]] int wire_bits(Way way) noexcept;
/// Returns how often a step sends gradients to other hosts. ZeRO-2 in full
/// precision sends them with every backward, and all other ways once.
[[nodiscard]] double ups_per_step(Way way, const Workload& work) noexcept;
/// Returns the number of elements, counted over the whole model, that are sent
/// together. It is the workload's or, by default, the optimizer's.
[[nodiscard]] double bucket_elements_of(Way way, bool by_host,
                                        const Workload& work,
                                        const Network& network);

/// Returns the times of a low-bit exchange of values whose result takes
/// `update` to apply.
[[nodiscard]] Compute quantizing(Compute compute, double update);
/// Processor seconds of a step's communication, which do not depend on the
/// network card.
struct Transport {
  double step = 0;
  /// Communication of an exact step in 0/1 Adam's variance stage. `step` is the
  /// mean of that stage.
  double exact = 0;
  double onebit = 0;
};
[[nodiscard]] Transport transport_of(Way way, bool by_host,
                                     const Workload& work,
                                     const Network& network);
/// Returns the planner's prediction for this communication.
[[nodiscard]] double step_seconds(Way way, bool by_host, const Workload& work,
                                  const Network& network,
                                  const Compute& compute,
                                  const Transport& transport);

}  // namespace thinwire::plan
