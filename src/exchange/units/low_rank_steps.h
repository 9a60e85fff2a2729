// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "exchange/units/low_bit_units.h"
#include "exchange/units/low_rank_units.h"
#include "exchange/units/unit_mean.h"
#include "exchange/units/unit_residuals.h"
#include "thinwire/exchange/low_rank_mean.h"

namespace thinwire::exchange {

/// The low-rank average, whose first passes are low-bit. It serves LowRankMean,
/// and optimizers with Accepts::kSteps, whose passes are the steps that were
/// not skipped.
class LowRankSteps final : public UnitMean {
 public:
  LowRankSteps(const Route& route, ThreadPool& pool,
               std::span<const MatrixShape> shapes,
               const LowRankMeanOptions& options, Accepts accepts);

  std::vector<bool> begin(const UnitPart& part) override;
  std::vector<bool> finish() override;
  void end_step(bool counts) override;
  void drop() noexcept override;
  [[nodiscard]] double wait_seconds() const override;
  void require_idle(std::string_view call) const;

  [[nodiscard]] std::size_t bytes_per_pass() const;
  /// Returns the bits per element of the next pass, or 0 if it sends factors.
  [[nodiscard]] int first_bits() const noexcept;

  [[nodiscard]] ConstView worker_error() { return low_rank_.worker_error(); }
  [[nodiscard]] Buffer copy_of_worker_error() {
    return low_rank_.copy_of_worker_error();
  }
  [[nodiscard]] const UnitResiduals& residuals() const { return residuals_; }
  [[nodiscard]] ConstView factors() const noexcept {
    return low_rank_.factors();
  }
  [[nodiscard]] std::span<const std::uint64_t> generators() const noexcept {
    return low_rank_.generators();
  }
  [[nodiscard]] std::int64_t passes() const noexcept;
  void load(const LowRankMean::Saved& saved);

 private:
  [[nodiscard]] bool is_first() const noexcept {
    return passes_ < options_.first_steps;
  }
  [[nodiscard]] PartsInFlight& now() {
    return is_first() ? static_cast<PartsInFlight&>(first_) : low_rank_;
  }
  [[nodiscard]] bool starts_pass(const UnitPart& part) const;
  void end_pass();
  void forget_pass();
  std::vector<bool> noted(std::vector<bool> completed);

  const LowRankMeanOptions options_;
  const Accepts accepts_;
  UnitResiduals residuals_;
  LowBitUnits first_;
  LowRankUnits low_rank_;
  std::int64_t passes_ = 0;
  // State of the present pass.
  std::vector<bool> seen_;  // by unit
  bool is_finite_ = true;
  bool has_begun_ = false;
};

}  // namespace thinwire::exchange
