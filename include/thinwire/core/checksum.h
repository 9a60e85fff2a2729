// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "thinwire/core/view.h"

namespace thinwire {

/// XXH3-64 of the view's bytes: the one hash this library uses, for layouts,
/// options and parameters. Not cryptographic.
[[nodiscard]] std::uint64_t checksum(ConstView values) noexcept;
[[nodiscard]] std::uint64_t checksum(std::string_view text) noexcept;

/// The same of bytes that come piece by piece.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(ConstView values) noexcept;
  /// Of all that was added since the last call.
  [[nodiscard]] std::uint64_t take() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thinwire
