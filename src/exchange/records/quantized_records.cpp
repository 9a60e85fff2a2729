// SPDX-License-Identifier: Apache-2.0
#include "exchange/records/quantized_records.h"

#include <array>
#include <utility>

namespace thinwire::exchange {

RecordSteps quantized_steps(TwoPhaseExchange& exchange, int bits,
                            QuantizedBlocks blocks) {
  const auto average = [&exchange, bits, server = std::move(blocks.server)](
                           const Received& from, Range range) {
    const std::size_t workers = exchange.places().workers;
    QuantizedMean mean(from, workers, bits,
                       static_cast<float>(1.0 / static_cast<double>(workers)));
    std::array<float, kernels::kMostSummed> values;
    for (std::size_t b = range.offset; b < range.end(); ++b) {
      kernels::QuantizedSum sum = server(b);
      const auto own = std::span(values).first(sum.residual.size());
      mean.write(b, own);
      sum.values = own;
      write_quantized(exchange.record(b), sum, bits);
    }
  };
  return {
      .encode =
          [&exchange, bits, worker = std::move(blocks.worker)](Range range) {
            for (std::size_t b = range.offset; b < range.end(); ++b)
              write_quantized(exchange.record(b), worker(b), bits);
          },
      .average = average,
      .deliver =
          [deliver = std::move(blocks.deliver)](Range range) {
            if (!deliver) return;
            for (std::size_t b = range.offset; b < range.end(); ++b) deliver(b);
          }};
}

float read_quantized(const TwoPhaseExchange& exchange, int bits,
                     std::size_t block, std::span<float> mean) {
  const kernels::Quantized sent = quantized_in(exchange.result(block));
  kernels::dequantize(sent, bits, nullptr, mean.data(), mean.size());
  return sent.step;
}

}  // namespace thinwire::exchange
