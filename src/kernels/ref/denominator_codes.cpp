// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/denominator_codes.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/ref/signs.h"
#include "thinwire/kernels/split_float.h"

namespace thinwire::kernels::ref {

CodeRange encode_denominators(const float* d, const std::uint32_t* active,
                              std::size_t size, int bits, std::uint8_t* codes) {
  require_bits(bits);
  std::fill_n(codes, code_bytes(size, bits), std::uint8_t{0});
  float least = 0;
  float most = 0;
  bool found = false;
  for (std::size_t i = 0; i < size; ++i) {
    if (masked(active, i)) continue;
    least = found ? std::min(least, d[i]) : d[i];
    most = found ? std::max(most, d[i]) : d[i];
    found = true;
  }
  if (!found) return {};
  CodeRange range{.low = static_cast<float>(log2(least))};
  range.step = static_cast<float>((log2(most) - double{range.low}) /
                                  most_code_steps(bits));
  range.step = std::max(range.step, 0.0f);  // low may be rounded up
  for (std::size_t i = 0; i < size; ++i)
    if (!masked(active, i))
      set_code(codes, i, bits, code_of(d[i], range, bits));
  return range;
}

void sign_update_coded(const MomentumForm& m, const CodedUpdateArrays& a,
                       const AdamCoefficients& c) {
  require_coded_update(m, a);
  const InverseTables tables = inverse_tables(a.range);
  for (std::size_t i = 0; i < a.size; ++i) {
    const float value =
        m.values != nullptr ? m.values[i] : value_of(m.signs, i);
    const float w = value * c.exp_avg_scale;
    const int code = code_at(a.codes, i, a.bits);
    float u = code == 0 ? 0.0f : w * tables.inverse(code - 1);
    float p = 0;
    if (a.params != nullptr)
      p = a.params[i];
    else
      join_float(a.high + i, a.low + i, &p, 1);
    if (c.decoupled_decay != 0) u = u + c.decoupled_decay * p;
    p = p + c.minus_learning_rate * u;
    if (a.params != nullptr)
      a.params[i] = p;
    else
      split_float(&p, a.high + i, a.low + i, 1);
  }
}

}  // namespace thinwire::kernels::ref
