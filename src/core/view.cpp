// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/view.h"

#include <fmt/format.h>

#include "core/require.h"

namespace thinwire::detail {

void require_dtype(DType have, DType want) {
  if (have != want)
    reject(fmt::format("view holds {}, but {} was requested", to_string(have),
                       to_string(want)));
}

void require_one_dtype(bool is_joined) {
  if (is_joined)
    reject(
        "view holds elements of two dtypes, but those of one dtype were "
        "requested");
}

void require_range(std::size_t offset, std::size_t count, std::size_t size) {
  if (offset > size || count > size - offset)
    reject(
        fmt::format("elements [{}, {} + {}) are not all inside a view of {} "
                    "elements",
                    offset, offset, count, size));
}

}  // namespace thinwire::detail
