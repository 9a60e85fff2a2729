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

/// The average of units as products of factors: LowRankMean after its first
/// passes. Units without factors travel in 8 bits.
class LowRankUnits final : public PartsInFlight {
 public:
  /// All arguments but `shapes` must outlive it.
  LowRankUnits(const Route& route, ThreadPool& pool, UnitResiduals& residuals,
               std::span<const MatrixShape> shapes, int low_rank,
               Accepts accepts);

  [[nodiscard]] std::size_t bytes_per_pass() const;
  /// Takes over residuals of averages in few bits. A server's residual counts
  /// in full, a worker's only as one of W: so a unit with factors gets the
  /// former W times, on the rank that served.
  void inherit();

  // ---- the state between passes
  /// Nothing may be in flight.
  [[nodiscard]] ConstView worker_error();
  [[nodiscard]] Buffer copy_of_worker_error();
  [[nodiscard]] ConstView factors() const noexcept { return factors_.view(); }
  [[nodiscard]] std::span<const std::uint64_t> generators() const noexcept {
    return generators_;
  }
  /// Throws Error(kCorruptCheckpoint) unless these are a state's parts.
  void check(ConstView factors,
             std::span<const std::uint64_t> generators) const;
  /// Sets what has been checked. Residuals have been set.
  void load(ConstView factors, std::span<const std::uint64_t> generators);

 private:
  class Way;

  // A unit that has factors.
  struct Matrix {
    MatrixShape shape;
    std::size_t rank;
    Range range;          // of the flat array
    std::size_t factor;   // first element of Q in factors_
    std::size_t number;   // in generators_
    std::size_t owner;    // the rank of each host that has its residual
    std::size_t first_p;  // numbers of its first blocks
    std::size_t first_q;
    bool in_spare = false;  // its residual is in spare_, not in residuals_

    [[nodiscard]] std::size_t p_size() const { return shape.rows * rank; }
    [[nodiscard]] std::size_t q_size() const { return shape.columns * rank; }
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  // Rows of one column of a factor that have one scale.
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
  // Return the residual, and the memory where M and the next one are formed.
  [[nodiscard]] float* residual(const Matrix& matrix);
  [[nodiscard]] float* next_residual(const Matrix& matrix);
  // Makes new factors those of the next pass. Columns of `zeros` are drawn.
  void keep(const Matrix& matrix, const float* q, std::uint64_t zeros);

  ThreadPool& pool_;
  UnitResiduals& residuals_;
  const ValueCodec& codec_;
  const std::size_t bucket_;
  std::vector<Matrix> matrices_;
  std::vector<std::size_t> matrix_of_;  // per unit; kNone: it has no factors
  Buffer factors_;
  std::vector<std::uint64_t> generators_;
  Buffer spare_;  // as large as the worker's residuals
};

}  // namespace thinwire::exchange
