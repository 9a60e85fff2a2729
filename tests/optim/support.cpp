// SPDX-License-Identifier: Apache-2.0
#include "optim/support.h"

#include <random>

namespace thinwire::test {

std::vector<float> normal(std::size_t n, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(n);
  for (float& value : values) value = distribution(generator);
  return values;
}

std::vector<float> gradient(std::size_t n, std::int64_t step, int rank) {
  std::vector<float> values = normal(n, 7);
  const auto noise = normal(n, 1000 + static_cast<std::uint32_t>(step) * 16 +
                                   static_cast<std::uint32_t>(rank));
  for (std::size_t i = 0; i < n; ++i) values[i] += 0.5f * noise[i];
  return values;
}

std::vector<float> gradient_with_gaps(const ParameterLayout& layout,
                                      std::int64_t step, int rank) {
  std::vector<float> values = gradient(layout.size(), step, rank);
  float size = 1;
  for (const Parameter& p : layout.parameters()) {
    size *= 0.6f;
    for (std::size_t i = 0; i < p.size; ++i) {
      const bool gap =
          p.name == "dead" || (p.name == "block_and_one" && i % 5 == 0);
      values[p.offset + i] *= gap ? 0 : size;
    }
  }
  return values;
}

}  // namespace thinwire::test
