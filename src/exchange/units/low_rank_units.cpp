// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/low_rank_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "exchange/checks.h"
#include "exchange/units/low_rank_way.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/low_rank.h"

namespace thinwire::exchange {

namespace {

constexpr int kFactorBits = 8;

// Returns a random number in [-1, 1) from Vigna's splitmix64.
float next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1;
}

// Divides a column by a power of two, so that its largest magnitude is in [1/2,
// 1). Products with the column then neither overflow nor underflow.
void scale_by_power(std::span<float> column) {
  float largest = 0;
  for (const float x : column) largest = std::max(largest, std::abs(x));
  if (largest == 0) return;
  int exponent = 0;
  static_cast<void>(std::frexp(largest, &exponent));
  for (float& x : column) x = std::ldexp(x, -exponent);
}

}  // namespace

LowRankUnits::LowRankUnits(const Route& route, ThreadPool& pool,
                           UnitResiduals& residuals,
                           std::span<const MatrixShape> shapes, int low_rank,
                           Accepts accepts)
    : PartsInFlight(route, residuals, 4, accepts),
      pool_(pool),
      residuals_(residuals),
      codec_(codec_of(kFactorBits)),
      bucket_(bucket_rule(residuals.size(), route.comm.size(), kFactorBits)),
      spare_(residuals.size(), DType::kFloat32) {
  std::size_t factors = 0;
  std::size_t p_blocks = 0;
  std::size_t q_blocks = 0;
  for (std::size_t unit = 0; unit < shapes.size(); ++unit) {
    const MatrixShape& shape = shapes[unit];
    const std::size_t rank = shape.rank(low_rank);
    matrix_of_.push_back(rank == 0 ? kNone : matrices_.size());
    if (rank == 0) continue;
    generators_.push_back(unit);
    matrices_.push_back({.shape = shape,
                         .rank = rank,
                         .range = residuals.units()[unit].range,
                         .factor = factors,
                         .number = matrices_.size(),
                         .owner = residuals.cuts_of(unit).front().place /
                                  residuals.places().workers,
                         .first_p = p_blocks,
                         .first_q = q_blocks});
    factors += matrices_.back().q_size();
    p_blocks += blocks_of(shape.rows) * rank;
    q_blocks += blocks_of(shape.columns) * rank;
  }
  factors_ = Buffer(factors, DType::kFloat32);
  for (const Matrix& matrix : matrices_) {
    float* const q = factors_.as<float>().data() + matrix.factor;
    for (std::size_t i = 0; i < matrix.q_size(); ++i)
      q[i] = next_random(generators_[matrix.number]);
    static_cast<void>(
        kernels::orthonormalize(q, matrix.shape.columns, matrix.rank));
  }
}

std::unique_ptr<PartWay> LowRankUnits::make_way(
    std::span<const std::size_t> units) {
  return std::make_unique<Way>(*this, units);
}

std::size_t LowRankUnits::place_of(std::size_t owner, std::size_t block) const {
  const std::size_t workers = residuals_.places().workers;
  return owner * workers + block % workers;
}

float* LowRankUnits::residual(const Matrix& matrix) {
  const View in = matrix.in_spare ? spare_.view() : residuals_.worker();
  return in.as<float>().data() + matrix.range.offset;
}

float* LowRankUnits::next_residual(const Matrix& matrix) {
  const View in = matrix.in_spare ? residuals_.worker() : spare_.view();
  return in.as<float>().data() + matrix.range.offset;
}

void LowRankUnits::keep(const Matrix& matrix, const float* q,
                        std::uint64_t zeros) {
  const auto to = factors_.as<float>().subspan(matrix.factor, matrix.q_size());
  std::copy_n(q, to.size(), to.begin());
  for (std::size_t c = 0; c < matrix.rank; ++c) {
    const auto column =
        to.subspan(c * matrix.shape.columns, matrix.shape.columns);
    if ((zeros >> c & 1) == 0) {
      scale_by_power(column);
      continue;
    }
    for (float& x : column) x = next_random(generators_[matrix.number]);
    static_cast<void>(kernels::orthonormalize(column.data(), column.size(), 1));
  }
}

void LowRankUnits::inherit() {
  const auto workers = static_cast<float>(residuals_.places().workers);
  const auto e = residuals_.worker().as<float>();
  const auto d = residuals_.server().as<float>();
  for (std::size_t unit = 0; unit < matrix_of_.size(); ++unit) {
    if (matrix_of_[unit] == kNone) continue;
    for (const UnitResiduals::Cut& cut : residuals_.cuts_of(unit)) {
      if (!residuals_.serves(cut)) continue;
      for (std::size_t i = 0; i < cut.range.size; ++i) {
        float& served = d[cut.served + i];
        e[cut.range.offset + i] += workers * std::exchange(served, 0.0f);
      }
    }
  }
}

std::size_t LowRankUnits::bytes_per_pass() const {
  std::size_t bytes = 0;
  const auto add = [&](const Matrix& matrix, std::size_t rows,
                       std::size_t number) {
    for (std::size_t c = 0; c < matrix.rank; ++c)
      for (std::size_t i = 0; i < rows; i += kFactorRows) {
        bytes += residuals_.bytes_at(place_of(matrix.owner, number++),
                                     std::min(kFactorRows, rows - i), codec_);
      }
  };
  for (const Matrix& matrix : matrices_) {
    add(matrix, matrix.shape.rows, matrix.first_p);
    add(matrix, matrix.shape.columns, matrix.first_q);
  }
  for (std::size_t unit = 0; unit < matrix_of_.size(); ++unit)
    if (matrix_of_[unit] == kNone) bytes += residuals_.bytes_of(unit, codec_);
  return bytes;
}

// ---- the state

ConstView LowRankUnits::worker_error() {
  for (Matrix& matrix : matrices_) {
    if (!matrix.in_spare) continue;
    const float* const from = residual(matrix);
    std::copy_n(from, matrix.range.size, next_residual(matrix));
    matrix.in_spare = false;
  }
  return residuals_.worker();
}

Buffer LowRankUnits::copy_of_worker_error() {
  Buffer all(residuals_.size(), DType::kFloat32);
  kernels::convert(residuals_.worker(), all.view());
  for (const Matrix& matrix : matrices_)
    std::copy_n(residual(matrix), matrix.range.size,
                all.as<float>().data() + matrix.range.offset);
  return all;
}

void LowRankUnits::check(ConstView factors,
                         std::span<const std::uint64_t> generators) const {
  require_residual("the factors", factors, DType::kFloat32, factors_.size());
  if (generators.size() != generators_.size())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the generators must be {}, got {}",
                            generators_.size(), generators.size()));
}

void LowRankUnits::load(ConstView factors,
                        std::span<const std::uint64_t> generators) {
  kernels::convert(factors, factors_.view());
  std::ranges::copy(generators, generators_.begin());
}

}  // namespace thinwire::exchange
