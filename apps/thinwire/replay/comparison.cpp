// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/comparison.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <numeric>

namespace thinwire::replay {

namespace {

std::string show(float value) {
  return fmt::format("0x{:08x} ({:.9g})", std::bit_cast<std::uint32_t>(value),
                     value);
}

}  // namespace

std::string Comparison::element(std::size_t index, std::size_t size) const {
  const std::size_t flat = std::accumulate(tensor_sizes_.begin(),
                                           tensor_sizes_.end(), std::size_t{0});
  if (flat != size) return fmt::format("element {}", index);
  std::size_t tensor = 0;
  while (index >= tensor_sizes_[tensor]) index -= tensor_sizes_[tensor++];
  return fmt::format("tensor {}, element {}", tensor, index);
}

void Comparison::differ(const Place& place, const std::string& where,
                        const std::string& got, const std::string& want) {
  step_ = place.step;
  difference_ = fmt::format("step {}, {}{}, rank {}: got {} want {}",
                            place.step, place.what, where, rank_, got, want);
}

void Comparison::floats(const Place& place, std::span<const float> got,
                        std::span<const float> want) {
  bytes_ += want.size_bytes();
  if (difference_) return;
  if (got.size() != want.size()) {
    differ(place, "", fmt::format("{} elements", got.size()),
           fmt::format("{}", want.size()));
    return;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = std::bit_cast<std::uint32_t>(got[i]) ==
                      std::bit_cast<std::uint32_t>(want[i]);
    if (same || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    differ(place, ", " + element(i, got.size()), show(got[i]), show(want[i]));
    return;
  }
}

void Comparison::bytes(const Place& place, std::span<const std::uint8_t> got,
                       std::span<const std::uint8_t> want) {
  bytes_ += want.size();
  if (difference_) return;
  if (got.size() != want.size()) {
    differ(place, "", fmt::format("{} bytes", got.size()),
           fmt::format("{}", want.size()));
    return;
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != want[i]) {
      differ(place, fmt::format(", byte {}", i), fmt::format("{:#04x}", got[i]),
             fmt::format("{:#04x}", want[i]));
      return;
    }
}

void Comparison::text(const Place& place, const std::string& got,
                      const std::string& want) {
  if (!difference_ && got != want) differ(place, "", got, want);
}

}  // namespace thinwire::replay
