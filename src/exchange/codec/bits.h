// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "exchange/codec/codec.h"

namespace thinwire::exchange {

/// Makes the codec of 4 or 8 bits per element: kernels/quantize.h.
[[nodiscard]] std::unique_ptr<const ValueCodec> make_bits_codec(int bits);

}  // namespace thinwire::exchange
