// SPDX-License-Identifier: Apache-2.0
// Low-rank averages as plain loops: all workers in one place.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/naive_mean.h"
#include "thinwire/exchange/low_rank_mean.h"

namespace thinwire::test {

/// Adds sixteen accumulators as a tree.
template <class T>
T folded(std::array<T, 16> sums) {
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

/// One matrix, whose factors have `rank` columns, and its average.
class NaiveMatrix {
 public:
  NaiveMatrix(exchange::MatrixShape shape, std::size_t rank, std::size_t unit)
      : rows_(shape.rows), columns_(shape.columns), rank_(rank), state_(unit) {
    for (std::size_t i = 0; i < columns_ * rank; ++i) q_.push_back(random());
    orthonormalize(q_, columns_, rank);
  }

  /// Replaces workers' x by the average times the loss scale; e are residuals.
  void average(std::vector<std::span<float>> x, float loss_scale,
               std::vector<std::span<float>> e) {
    std::vector<std::vector<float>> p;
    for (std::size_t k = 0; k < x.size(); ++k) {
      for (std::size_t i = 0; i < x[k].size(); ++i)
        e[k][i] = x[k][i] * (1 / loss_scale) + e[k][i];
      p.push_back(times_q(e[k]));
    }
    std::vector<float> mean_p = mean(p, rows_);
    const std::vector<bool> zeros = orthonormalize(mean_p, rows_, rank_);
    std::vector<std::vector<float>> q;
    for (const auto& m : e) q.push_back(transposed_times(m, mean_p));
    q_ = mean(q, columns_);
    for (std::size_t i = 0; i < rows_; ++i)
      for (std::size_t j = 0; j < columns_; ++j) {
        float out = 0;
        for (std::size_t c = 0; c < rank_; ++c)
          out += mean_p[c * rows_ + i] * q_[c * columns_ + j];
        for (std::size_t k = 0; k < x.size(); ++k) {
          e[k][i * columns_ + j] -= out;
          x[k][i * columns_ + j] = out * loss_scale;
        }
      }
    for (std::size_t c = 0; c < rank_; ++c) renew(c, zeros[c]);
  }

  [[nodiscard]] const std::vector<float>& q() const { return q_; }

 private:
  float random() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<float>(z >> 40) / 8388608.0f - 1;
  }

  [[nodiscard]] std::vector<float> times_q(std::span<const float> m) const {
    std::vector<float> p(rows_ * rank_);
    for (std::size_t c = 0; c < rank_; ++c)
      for (std::size_t i = 0; i < rows_; ++i) {
        std::array<float, 16> sums{};
        for (std::size_t j = 0; j < columns_; ++j)
          sums[j % 16] += m[i * columns_ + j] * q_[c * columns_ + j];
        p[c * rows_ + i] = folded(sums);
      }
    return p;
  }

  [[nodiscard]] std::vector<float> transposed_times(
      std::span<const float> m, const std::vector<float>& p) const {
    std::vector<float> q(columns_ * rank_);
    for (std::size_t c = 0; c < rank_; ++c)
      for (std::size_t j = 0; j < columns_; ++j)
        for (std::size_t i = 0; i < rows_; ++i)
          q[c * columns_ + j] += m[i * columns_ + j] * p[c * rows_ + i];
    return q;
  }

  // In 8 bits each way, 64 rows of a column at a time, without residuals.
  [[nodiscard]] std::vector<float> mean(
      const std::vector<std::vector<float>>& of, std::size_t rows) const {
    std::vector<float> all(rows * rank_);
    const auto share = static_cast<float>(1.0 / static_cast<double>(of.size()));
    for (std::size_t c = 0; c < rank_; ++c)
      for (std::size_t i = 0; i < rows; i += 64) {
        const std::size_t size = std::min<std::size_t>(64, rows - i);
        const std::size_t at = c * rows + i;
        std::vector<float> sum(size);
        for (const auto& own : of) {
          const NaiveCodes sent(own.data() + at, size, 8);
          for (std::size_t k = 0; k < size; ++k)
            sum[k] += sent.q[k] * (sent.step * share);
        }
        const NaiveCodes result(sum.data(), size, 8);
        for (std::size_t k = 0; k < size; ++k)
          all[at + k] = result.q[k] * result.step;
      }
    return all;
  }

  // Modified Gram-Schmidt in double. Returns which columns became 0.
  static std::vector<bool> orthonormalize(std::vector<float>& p,
                                          std::size_t rows, std::size_t rank) {
    std::vector<bool> zeros;
    std::vector<std::vector<double>> columns;
    const auto dot = [&](const std::vector<double>& v,
                         const std::vector<double>& w) {
      std::array<double, 16> sums{};
      for (std::size_t i = 0; i < rows; ++i) sums[i % 16] += v[i] * w[i];
      return folded(sums);
    };
    for (std::size_t c = 0; c < rank; ++c) {
      const auto first = p.begin() + static_cast<std::ptrdiff_t>(c * rows);
      std::vector<double> v(first, first + static_cast<std::ptrdiff_t>(rows));
      const double before = std::sqrt(dot(v, v));
      for (const auto& w : columns) {
        const double by = dot(w, v);
        for (std::size_t i = 0; i < rows; ++i) v[i] = v[i] - by * w[i];
      }
      const double after = std::sqrt(dot(v, v));
      zeros.push_back(after == 0 || after < before * 0x1p-40);
      for (double& value : v) value = zeros.back() ? 0 : value / after;
      std::ranges::transform(
          v, first, [](double value) { return static_cast<float>(value); });
      columns.push_back(std::move(v));
    }
    return zeros;
  }

  void renew(std::size_t c, bool is_zero) {
    const auto first = q_.begin() + static_cast<std::ptrdiff_t>(c * columns_);
    std::vector<float> column(first,
                              first + static_cast<std::ptrdiff_t>(columns_));
    float largest = 0;
    for (const float value : column)
      largest = std::max(largest, std::fabs(value));
    if (is_zero) {
      for (float& value : column) value = random();
      orthonormalize(column, columns_, 1);
    } else if (largest > 0) {
      const int exponent = std::ilogb(largest) + 1;
      for (float& value : column) value = std::ldexp(value, -exponent);
    }
    std::ranges::copy(column, first);
  }

  std::size_t rows_;
  std::size_t columns_;
  std::size_t rank_;
  std::uint64_t state_;
  std::vector<float> q_;  // columns, one after the other
};

/// Averages passes of all workers' gradients, fp32, of units one after another.
class NaiveLowRank {
 public:
  NaiveLowRank(std::span<const exchange::MatrixShape> shapes,
               const exchange::LowRankMeanOptions& options, std::size_t workers)
      : options_(options) {
    std::size_t at = 0;
    for (std::size_t unit = 0; unit < shapes.size(); ++unit) {
      const exchange::MatrixShape shape = shapes[unit];
      units_.push_back({at, shape.size()});
      matrices_.push_back(-1);
      at += shape.size();
      const std::size_t rank = shape.rank(options.low_rank);
      if (rank == 0) continue;
      matrices_.back() = static_cast<int>(of_.size());
      of_.emplace_back(shape, rank, unit);
    }
    e.assign(workers, std::vector<float>(at));
    d.assign(at, 0.0f);
  }

  /// `served_by` is the worker that serves the cut at this element.
  template <class ServedBy>
  void average(std::vector<std::vector<float>>& x, float loss_scale,
               ServedBy&& served_by) {
    if (passes_ == options_.first_steps) hand_over(served_by);
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const Range range = units_[unit];
      if (passes_ < options_.first_steps || matrices_[unit] < 0) {
        naive_mean(range,
                   passes_ < options_.first_steps ? options_.first_bits : 8,
                   loss_scale, x, e, d);
        continue;
      }
      std::vector<std::span<float>> values;
      std::vector<std::span<float>> errors;
      for (std::size_t k = 0; k < x.size(); ++k) {
        values.push_back(std::span(x[k]).subspan(range.offset, range.size));
        errors.push_back(std::span(e[k]).subspan(range.offset, range.size));
      }
      of_[static_cast<std::size_t>(matrices_[unit])].average(values, loss_scale,
                                                             errors);
    }
    ++passes_;
  }

  [[nodiscard]] std::vector<float> factors() const {
    std::vector<float> all;
    for (const NaiveMatrix& matrix : of_)
      all.insert(all.end(), matrix.q().begin(), matrix.q().end());
    return all;
  }

  std::vector<std::vector<float>> e;  // per worker
  std::vector<float> d;

 private:
  template <class ServedBy>
  void hand_over(ServedBy&& served_by) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      for (std::size_t i = 0; i < units_[unit].size; ++i) {
        if (matrices_[unit] < 0) break;
        const std::size_t at = units_[unit].offset + i;
        e[served_by(unit, i)][at] += static_cast<float>(e.size()) * d[at];
        d[at] = 0;
      }
  }

  exchange::LowRankMeanOptions options_;
  std::vector<Range> units_;
  std::vector<int> matrices_;  // per unit; -1: none
  std::vector<NaiveMatrix> of_;
  std::int64_t passes_ = 0;
};

}  // namespace thinwire::test
