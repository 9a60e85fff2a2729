// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::optim {

/// The coefficients of the learning rates in 1-bit LAMB (arXiv:2104.06069,
/// Algorithm 1). In the warm-up stage they are LAMB's trust ratios c. In the
/// compression stage they are r * c_avg, averages of such ratios times a
/// factor. All vectors have one value per parameter.
class LambCoefficients {
 public:
  LambCoefficients(const OnebitLambOptions& options, std::size_t count);

  /// Warm-up stage: c enters the average, c_avg = beta c_avg + (1 - beta) c.
  void average(std::size_t parameter, double trust_ratio);
  /// Compression stage: the factor r, kept within its bounds and near the last
  /// step's. `drift` is the largest frozen over fresh denominator, `decayed`
  /// how much of the update is not decay: min(1, ||u0|| / ||u||).
  [[nodiscard]] double factor(std::size_t parameter, double drift,
                              double decayed, bool has_decay);
  /// c_avg, corrected for beginning at 0; 1 where no ratio was averaged.
  [[nodiscard]] double corrected_average(std::size_t parameter) const;

  void add_to(State& state) const;
  /// Throws Error(kCorruptCheckpoint).
  [[nodiscard]] LambCoefficients read(const StateDict& state) const;

  std::vector<double> last;      ///< ratios of the last step
  std::vector<double> averages;  ///< c_avg.
  std::vector<std::int64_t> num_averaged;
  std::vector<double> last_factors;  ///< r.

 private:
  double beta_;
  double factor_max_;
  double factor_min_;
  double factor_threshold_;
};

/// Returns k = (mean RMS of all momenta) / the parameter's own RMS, or 1 for a
/// momentum of zero. The factors bring momenta to a common size before they are
/// compressed.
[[nodiscard]] std::vector<double> common_size_scales(
    std::span<const double> rms, const ParameterLayout& layout);

}  // namespace thinwire::optim
