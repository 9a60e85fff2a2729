// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/checks.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::optim {

/// Coefficients of the learning rates in 1-bit LAMB (arXiv:2104.06069,
/// Algorithm 1). In the warm-up stage they are LAMB's trust ratios c. In the
/// compression stage they are r * c_avg, where c_avg is an average of such
/// ratios and r a factor. All vectors have one value per parameter.
class LambCoefficients {
 public:
  LambCoefficients(const OnebitLambOptions& options, std::size_t count);

  /// Warm-up stage: updates c_avg = beta c_avg + (1 - beta) c.
  void average(std::size_t parameter, double trust_ratio);
  /// Compression stage: returns the factor r, limited to its bounds and to the
  /// neighbourhood of the last step's. `drift` is the largest ratio of a frozen
  /// to a fresh denominator. `decayed` is the part of the update that is not
  /// decay, min(1, ||u0|| / ||u||).
  [[nodiscard]] double factor(std::size_t parameter, double drift,
                              double decayed, bool has_decay);
  /// Returns c_avg, corrected for its start at 0, or 1 if no ratio was
  /// averaged.
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
/// momentum of zero. These factors give momenta a common size for the
/// compression.
[[nodiscard]] std::vector<double> common_size_scales(
    std::span<const double> rms, const ParameterLayout& layout);

/// Throws Error(kInvalidArgument), which calls the limits by these names.
void require_trust_limits(TrustLimits limits, std::string_view min_name,
                          std::string_view max_name);

/// Returns the limits of all `count` groups. A group without limits gets those
/// of the options.
template <class Options>
[[nodiscard]] std::vector<TrustLimits> trust_limits(const Options& o,
                                                    std::size_t count) {
  std::vector<TrustLimits> limits(count, {o.min_coeff, o.max_coeff});
  for (std::size_t g = 0; g < o.groups.size(); ++g)
    limits[g] = {o.groups[g].min_coeff.value_or(o.min_coeff),
                 o.groups[g].max_coeff.value_or(o.max_coeff)};
  return limits;
}

/// Throws Error(kInvalidArgument) with the field, its range and its value. A
/// group's field is named like "groups[1].max_coeff".
template <class Options>
void require_trust_limits(const Options& o) {
  require_trust_limits({o.min_coeff, o.max_coeff}, "min_coeff", "max_coeff");
  for (std::size_t g = 0; g < o.groups.size(); ++g) {
    const auto& group = o.groups[g];
    const auto name = [g](bool is_own, const char* field) {
      return is_own ? fmt::format("groups[{}].{}", g, field) : field;
    };
    require_trust_limits({group.min_coeff.value_or(o.min_coeff),
                          group.max_coeff.value_or(o.max_coeff)},
                         name(group.min_coeff.has_value(), "min_coeff"),
                         name(group.max_coeff.has_value(), "max_coeff"));
  }
}

/// Returns a text such as "min_coeff=0.01 max_coeff=10" with the limits of each
/// group.
[[nodiscard]] std::string describe(std::span<const TrustLimits> limits);

[[nodiscard]] TrustRatio trust_ratio(const NormSums& sums, TrustLimits limits);

/// The two passes of an exact LAMB step over `adam`'s moments. Each call runs
/// in the caller's thread, and several threads may process different parts.
class LambStep {
 public:
  LambStep(Adam& adam, std::int64_t step, float grad_scale);

  /// Implements UpdateRule::measure().
  void measure(std::span<const NormCell> cells, const UpdateArrays& arrays,
               std::span<NormSums> sums) const;
  /// Runs the second pass over elements `part`, with views of them in `arrays`.
  /// `ratios` holds every parameter's trust ratio.
  void update(Range part, const UpdateArrays& arrays,
              std::span<const TrustRatio> ratios) const;

 private:
  [[nodiscard]] kernels::AdamArrays at(Range range,
                                       const UpdateArrays& arrays) const;

  Adam& adam_;
  std::vector<kernels::AdamCoefficients> coefficients_;  // per group
};

/// Runs both passes over all parameters. `limits` holds those of every group.
/// Returns the ratio of each parameter.
[[nodiscard]] std::vector<TrustRatio> lamb_step(
    Adam& adam, std::int64_t step, const UpdateArrays& arrays,
    std::span<const TrustLimits> limits, ThreadPool& pool);

}  // namespace thinwire::optim
