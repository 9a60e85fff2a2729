// SPDX-License-Identifier: Apache-2.0
// Averages in few bits with error feedback, as plain loops: all ranks in one
// place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "support/naive_codes.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::test {

/// One rank's part of the mean of a block: adds what it sends of x * factor + e
/// to `sum`, times `share`, and leaves the rest in e.
inline void naive_send(std::span<const float> x, float factor, int bits,
                       float share, std::span<float> e, std::span<float> sum) {
  for (std::size_t i = 0; i < x.size(); ++i) e[i] = x[i] * factor + e[i];
  const NaiveCodes sent(e.data(), x.size(), bits);
  for (std::size_t i = 0; i < x.size(); ++i) {
    e[i] = e[i] - sent.q[i] * sent.step;
    sum[i] += sent.q[i] * (sent.step * share);
  }
}

/// Replaces `range`, of one unit, of all ranks' values by its average. `e` are
/// workers' residuals, and `d` those of the servers.
inline void naive_mean(Range range, int bits, float loss_scale,
                       std::vector<std::vector<float>>& x,
                       std::vector<std::vector<float>>& e,
                       std::vector<float>& d) {
  const auto share = static_cast<float>(1.0 / static_cast<double>(x.size()));
  for (std::size_t begin = range.offset; begin < range.end(); begin += 1024) {
    const std::size_t size = std::min<std::size_t>(1024, range.end() - begin);
    std::vector<float> mean(size);
    for (std::size_t r = 0; r < x.size(); ++r)
      naive_send(std::span(x[r]).subspan(begin, size), 1 / loss_scale, bits,
                 share, std::span(e[r]).subspan(begin, size), mean);
    for (std::size_t i = 0; i < size; ++i) mean[i] += d[begin + i];
    const NaiveCodes result(mean.data(), size, bits);
    for (std::size_t i = 0; i < size; ++i) {
      const float sent = result.q[i] * result.step;
      d[begin + i] = mean[i] - sent;
      for (std::vector<float>& values : x)
        values[begin + i] = sent * loss_scale;
    }
  }
}

}  // namespace thinwire::test
