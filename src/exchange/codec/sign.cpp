// SPDX-License-Identifier: Apache-2.0
#include "exchange/codec/sign.h"

#include <vector>

namespace thinwire::exchange {

float SignCodec::encode(const kernels::SignInput& input,
                        kernels::SignBlock block, std::uint8_t* record) {
  block.words = words_of(record);
  const float scale = kernels::sign_encode(input, block);
  set_scale(record, scale);
  return scale;
}

float SignCodec::average(std::span<const std::uint8_t* const> records,
                         float factor, kernels::SignBlock block,
                         std::uint8_t* record) {
  thread_local std::vector<kernels::Signs> signs;
  signs.clear();
  for (const std::uint8_t* const from : records) signs.push_back(decode(from));
  block.words = words_of(record);
  const float scale = kernels::sign_encode_average(signs, factor, block);
  set_scale(record, scale);
  return scale;
}

const SignCodec& sign_codec() {
  static const SignCodec codec;
  return codec;
}

}  // namespace thinwire::exchange
