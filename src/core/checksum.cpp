// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/checksum.h"

#define XXH_INLINE_ALL  // so that users of the library need not link it
#include <xxhash.h>

namespace thinwire {

std::uint64_t checksum(ConstView values) noexcept {
  return XXH3_64bits(values.data(), values.bytes());
}

std::uint64_t checksum(std::string_view text) noexcept {
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace thinwire
