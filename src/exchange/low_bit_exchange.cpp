// SPDX-License-Identifier: Apache-2.0
#include "exchange/low_bit_exchange.h"

#include <array>
#include <cmath>
#include <utility>

#include "exchange/write_mean.h"

namespace thinwire::exchange {

namespace {

using Values = std::array<float, kernels::kMostSummed>;

}  // namespace

LowBitExchange::LowBitExchange(const Route& route, ThreadPool& pool,
                               const BlockLayout& layout,
                               const ValueCodec& codec,
                               const Pipeline::Options& options,
                               Residuals&& own)
    : residuals(std::move(own)),
      layout_(layout),
      codec_(codec),
      goes_down_(options.direction == Direction::kBoth),
      pipeline_(route, pool, layout, {codec, codec}, options) {}

void LowBitExchange::begin(Source source, float factor) {
  source_ = std::move(source);
  factor_ = factor;
  is_finite_ = true;
  pipeline_.begin(
      {.encode = [this](std::size_t b,
                        std::uint8_t* record) { encode(b, record); },
       .average = [this](std::size_t b, SentRecords sent,
                         std::uint8_t* record) { average(b, sent, record); }});
}

void LowBitExchange::ready_all() {
  for (std::size_t k = 0; k < layout_.buckets().size(); ++k) ready(k);
}

void LowBitExchange::write_to(const Output& to) {
  to_ = to;
  if (!goes_down_) return;
  pipeline_.take_with(
      [this](std::size_t b, const std::uint8_t* record) {
        Values values;
        const auto mean =
            std::span(values).first(layout_.blocks()[b].values.size);
        codec_.decode(record, mean);
        write(b, mean, std::isfinite(scale_of(record)));
      },
      {});
}

bool LowBitExchange::finish() {
  pipeline_.finish();
  return is_finite_;
}

// If a run ends without an agreement of the ranks, a block that is not finite
// keeps its old residual.
void LowBitExchange::encode(std::size_t b, std::uint8_t* record) {
  kernels::QuantizedSum sum = residuals.worker.sum(b);
  sum.values = source_(b);
  sum.factor = factor_;
  if (goes_down_) return codec_.encode(sum, record);
  Values memory;
  sum.error = View(memory.data(), sum.residual.size(), sum.residual.dtype());
  codec_.encode(sum, record);
  if (std::isfinite(scale_of(record))) residuals.worker.keep(b, sum.error);
}

void LowBitExchange::average(std::size_t b, SentRecords sent,
                             std::uint8_t* record) {
  Values values;
  const auto mean = std::span(values).first(layout_.blocks()[b].values.size);
  codec_.average(sent, mean);
  if (!goes_down_)  // 0 * NaN is NaN, so this sees any rank's scale
    return write(b, mean, std::isfinite(mean.front()));
  kernels::QuantizedSum sum = residuals.server.sum(b);
  sum.values = mean;
  codec_.encode(sum, record);
}

// Writes the mean, which may lie above the largest finite gradient.
void LowBitExchange::write(std::size_t b, std::span<float> mean,
                           bool is_finite) {
  if (!is_finite) is_finite_ = false;
  const std::size_t at =
      to_.to.empty() ? layout_.blocks()[b].values.offset : to_.to[b];
  write_mean(mean, to_.scale, is_finite && to_.saturates,
             to_.values.subview(at, mean.size()));
}

}  // namespace thinwire::exchange
