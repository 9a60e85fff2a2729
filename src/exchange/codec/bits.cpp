// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "exchange/codec/codec.h"

namespace thinwire::exchange {

namespace {

kernels::Quantized quantized_in(const std::uint8_t* record) {
  return {words_of(record), scale_of(record)};
}

class BitsCodec final : public ValueCodec {
 public:
  explicit BitsCodec(int bits) : bits_(bits) {}

  [[nodiscard]] std::size_t record_bytes(
      std::size_t elements) const noexcept override {
    return sizeof(float) +
           kernels::quantized_words(elements, bits_) * sizeof(std::uint32_t);
  }

  void encode(const kernels::QuantizedSum& sum,
              std::uint8_t* record) const override {
    set_scale(record, kernels::quantize_sum(sum, bits_, words_of(record)));
  }

  void average(std::span<const std::uint8_t* const> records, float factor,
               std::span<float> mean) const override {
    thread_local std::vector<kernels::Quantized> sent;
    sent.clear();
    for (const std::uint8_t* const record : records)
      sent.push_back(quantized_in(record));
    kernels::quantized_average(sent, bits_, factor, nullptr, mean.data(),
                               mean.size());
  }

  void decode(const std::uint8_t* record,
              std::span<float> values) const override {
    kernels::dequantize(quantized_in(record), bits_, nullptr, values.data(),
                        values.size());
  }

  void add(const std::uint8_t* record, View values) const override {
    kernels::dequantize_add(quantized_in(record), bits_, values);
  }

 private:
  int bits_;
};

}  // namespace

std::unique_ptr<const ValueCodec> make_bits_codec(int bits) {
  return std::make_unique<BitsCodec>(bits);
}

}  // namespace thinwire::exchange
