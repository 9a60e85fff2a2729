// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "thinwire/core/view.h"

namespace thinwire {

/// Returns the XXH3-64 of the view's bytes. The library uses this one hash for
/// layouts, options and parameters; it is not cryptographic.
[[nodiscard]] std::uint64_t checksum(ConstView values) noexcept;
[[nodiscard]] std::uint64_t checksum(std::string_view text) noexcept;

/// Computes the same hash as checksum() from bytes that are added in pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(ConstView values) noexcept;
  /// Returns the hash of everything added since the last call.
  [[nodiscard]] std::uint64_t take() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thinwire
