// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/checksum.h"

#define XXH_INLINE_ALL  // so that users of the library need not link it
#include <xxhash.h>

#include "core/xxh3_functions.h"

namespace thinwire {

namespace {

const Xxh3& xxh3() noexcept {
  static const Xxh3* const avx2 = xxh3_avx2();
  return avx2 != nullptr ? *avx2 : kXxh3;
}

}  // namespace

std::uint64_t checksum(ConstView values) noexcept {
  return xxh3().hash(values.data(), values.bytes());
}

std::uint64_t checksum(std::string_view text) noexcept {
  return xxh3().hash(text.data(), text.size());
}

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  xxh3().reset(&state_->xxh3);
}

Checksum::~Checksum() = default;

void Checksum::add(ConstView values) noexcept {
  xxh3().update(&state_->xxh3, values.data(), values.bytes());
}

std::uint64_t Checksum::take() noexcept {
  const std::uint64_t value = xxh3().digest(&state_->xxh3);
  xxh3().reset(&state_->xxh3);
  return value;
}

}  // namespace thinwire
