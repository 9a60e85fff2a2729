// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include <cstring>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"

namespace thinwire::kernels::ref {

void convert(ConstView from, View to) {
  require_floats("from", from, from.size());
  require_floats("to", to, from.size());
  if (from.dtype() == to.dtype()) {
    // Copies bits, because a conversion through float would make signalling
    // NaNs quiet.
    if (!from.empty()) std::memmove(to.data(), from.data(), from.bytes());
    return;
  }
  visit_floats(from, [&](const auto* values) {
    visit_floats(to, [&](auto* out) {
      for (std::size_t i = 0; i < to.size(); ++i) {
        store_rounded(to_float(values[i]), out + i);
      }
    });
  });
}

void accumulate(View sum, ConstView values) {
  require_floats("sum", sum, sum.size());
  require_floats("values", values, sum.size());
  visit_floats(values, [&](const auto* x) {
    visit_floats(sum, [&](auto* s) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        store_rounded(to_float(s[i]) + to_float(x[i]), s + i);
      }
    });
  });
}

}  // namespace thinwire::kernels::ref
