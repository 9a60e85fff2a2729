// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "exchange/records/two_phase_exchange.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::exchange {

/// The content of records of 4 or 8 bits per element in a two-phase exchange,
/// block by block. Several threads call the functions at once, for different
/// blocks.
struct QuantizedBlocks {
  /// Returns what this rank encodes.
  std::function<kernels::QuantizedSum(std::size_t block)> worker;
  /// Returns residual and error of a block that this rank serves.
  std::function<kernels::QuantizedSum(std::size_t block)> server;
  /// Takes a result, which read_quantized() decodes.
  std::function<void(std::size_t block)> deliver;
};

/// Returns the steps of a run with error feedback: per block, with the sums
/// above, c = values * factor + residual is sent, and error = c less what was
/// sent. A server's values are the workers' mean. `exchange` must outlive them.
[[nodiscard]] RecordSteps quantized_steps(TwoPhaseExchange& exchange, int bits,
                                          QuantizedBlocks blocks);
/// Writes the last run's result of a block, and returns its scale.
float read_quantized(const TwoPhaseExchange& exchange, int bits,
                     std::size_t block, std::span<float> mean);

}  // namespace thinwire::exchange
