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

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

Checksum::~Checksum() = default;

void Checksum::add(ConstView values) noexcept {
  XXH3_64bits_update(&state_->xxh3, values.data(), values.bytes());
}

std::uint64_t Checksum::take() noexcept {
  const std::uint64_t value = XXH3_64bits_digest(&state_->xxh3);
  XXH3_64bits_reset(&state_->xxh3);
  return value;
}

}  // namespace thinwire
