// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exchange/codec/codec.h"
#include "exchange/units/low_bit_units.h"
#include "exchange/units/parts_in_flight.h"
#include "exchange/units/unit_residuals.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/low_rank_mean.h"

namespace thinwire::exchange {

/// The average of units as products of factors, which LowRankMean uses after
/// its first passes. Units without factors are sent in 8 bits.
class LowRankUnits final : public PartsInFlight {
 public:
  /// All arguments except `shapes` must outlive this object.
  LowRankUnits(const Route& route, ThreadPool& pool, UnitResiduals& residuals,
               std::span<const MatrixShape> shapes, int low_rank,
               Accepts accepts);

  [[nodiscard]] std::size_t bytes_per_pass() const;
  /// Adopts the residuals of low-bit averages. A server's residual counts in
  /// full, but a worker's only as one of W. For a unit with factors, the rank
  /// that served therefore multiplies the server's residual by W.
  void inherit();

  // ---- the state between passes
  /// Nothing may be in flight in these calls.
  [[nodiscard]] ConstView worker_error();
  [[nodiscard]] Buffer copy_of_worker_error();
  [[nodiscard]] ConstView factors() const noexcept { return factors_.view(); }
  [[nodiscard]] std::span<const std::uint64_t> generators() const noexcept {
    return generators_;
  }
  /// Throws Error(kCorruptCheckpoint) unless these arrays fit this object.
  void check(ConstView factors,
             std::span<const std::uint64_t> generators) const;
  /// Sets the arrays, which have passed check(), after the residuals have been
  /// set.
  void load(ConstView factors, std::span<const std::uint64_t> generators);

 private:
  class Way;

  // A unit with factors.
  struct Matrix {
    MatrixShape shape;
    std::size_t rank;
    Range range;          // in the flat array
    std::size_t factor;   // index of Q's first element in factors_
    std::size_t number;   // index in generators_
    std::size_t owner;    // index, in each host, of the rank with its residual
    std::size_t first_p;  // indices of its first blocks
    std::size_t first_q;
    bool in_spare = false;  // whether spare_ has its residual

    [[nodiscard]] std::size_t p_size() const { return shape.rows * rank; }
    [[nodiscard]] std::size_t q_size() const { return shape.columns * rank; }
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  // Number of rows of a factor's column that share one scale.
  static constexpr std::size_t kFactorRows = 64;

  [[nodiscard]] static std::size_t blocks_of(std::size_t rows) {
    return (rows + kFactorRows - 1) / kFactorRows;
  }

  [[nodiscard]] std::unique_ptr<PartWay> make_way(
      std::span<const std::size_t> units) override;
  // Returns the place of a factor's block.
  [[nodiscard]] std::size_t place_of(std::size_t owner,
                                     std::size_t block) const;
  [[nodiscard]] bool is_own(const Matrix& matrix) const {
    return residuals_.encodes(matrix.owner * residuals_.places().workers);
  }
  // Return the residual, from which M is computed, and the memory for the next
  // one.
  [[nodiscard]] float* residual(const Matrix& matrix);
  [[nodiscard]] float* next_residual(const Matrix& matrix);
  // Makes q the factor of the next pass, and draws the columns in `zeros` anew.
  void keep(const Matrix& matrix, const float* q, std::uint64_t zeros);

  ThreadPool& pool_;
  UnitResiduals& residuals_;
  const ValueCodec& codec_;
  const std::size_t bucket_;
  std::vector<Matrix> matrices_;
  std::vector<std::size_t> matrix_of_;  // per unit; kNone if it has no factors
  Buffer factors_;
  std::vector<std::uint64_t> generators_;
  Buffer spare_;  // same size as the worker's residuals
};

}  // namespace thinwire::exchange
