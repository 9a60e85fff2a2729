// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "thinwire/core/view.h"

namespace thinwire {

/// XXH3-64 of the view's bytes: the one hash this library uses, for layouts,
/// options and parameters. Not cryptographic.
[[nodiscard]] std::uint64_t checksum(ConstView values) noexcept;
[[nodiscard]] std::uint64_t checksum(std::string_view text) noexcept;

}  // namespace thinwire
