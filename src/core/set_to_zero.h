// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "thinwire/core/view.h"

namespace thinwire {

/// Sets all elements to 0. An empty view may have a null pointer, which
/// memset() does not accept.
inline void set_to_zero(View values) {
  for (const View& part : values.parts())
    if (!part.empty()) std::memset(part.data(), 0, part.bytes());
}

}  // namespace thinwire
