// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/values.h"
#include "thinwire/kernels/adam.h"

/// Tests of kernels that take AdamCoefficients share these cases.
namespace thinwire::kernels {

inline std::vector<AdamCoefficients> coefficient_cases() {
  const AdamCoefficients base{.exp_avg_scale = 1 / 0.3f,
                              .exp_avg_sq_scale = 1 / 0.007f,
                              .minus_learning_rate = -0.01f,
                              .grad_scale = 1 / 3.0f};
  std::vector<AdamCoefficients> cases(6, base);
  cases[1].epsilon_inside_sqrt = true;
  cases[2].l2_decay = 0.1f;
  cases[3].decoupled_decay = 0.1f;
  cases[4] = AdamCoefficients{.grad_scale = 1024};
  cases[5].epsilon = 0;  // 0 / 0 where v is 0
  cases[5].l2_decay = 1e-3f;
  cases[5].decoupled_decay = 1e-2f;
  return cases;
}

inline std::vector<float> values_of(std::size_t size, std::uint32_t seed,
                                    bool special = true) {
  return special ? test::normal_and_special(size, seed)
                 : test::normal(size, seed);
}

inline std::vector<float> variances_of(std::size_t size, bool special = true) {
  std::vector<float> values = values_of(size, 3, special);
  for (float& v : values) v = std::abs(v);
  return values;
}

}  // namespace thinwire::kernels
