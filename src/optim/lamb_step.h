// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/checks.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/optim/lamb.h"

namespace thinwire::optim {

/// Throws Error(kInvalidArgument) by these names.
void require_trust_limits(TrustLimits limits, std::string_view min_name,
                          std::string_view max_name);

/// Every group's limits, `count` of them: the options' where a group has none
/// of its own.
template <class Options>
[[nodiscard]] std::vector<TrustLimits> trust_limits(const Options& o,
                                                    std::size_t count) {
  std::vector<TrustLimits> limits(count, {o.min_coeff, o.max_coeff});
  for (std::size_t g = 0; g < o.groups.size(); ++g)
    limits[g] = {o.groups[g].min_coeff.value_or(o.min_coeff),
                 o.groups[g].max_coeff.value_or(o.max_coeff)};
  return limits;
}

/// Throws Error(kInvalidArgument) naming the field, its range and its value, a
/// group's as "groups[1].max_coeff".
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

/// "min_coeff=0.01 max_coeff=10", one after another.
[[nodiscard]] std::string describe(std::span<const TrustLimits> limits);

[[nodiscard]] TrustRatio trust_ratio(const NormSums& sums, TrustLimits limits);

/// The two passes of one exact step of LAMB on the moments that `adam` holds.
/// Each works on the caller's thread; different parts may be worked on at once.
class LambStep {
 public:
  LambStep(Adam& adam, std::int64_t step, float grad_scale);

  /// Implements UpdateRule::measure().
  void measure(std::span<const NormCell> cells, const UpdateArrays& arrays,
               std::span<NormSums> sums) const;
  /// The second pass over elements `part`, of which `arrays` are the views.
  /// `ratios` are every parameter's.
  void update(Range part, const UpdateArrays& arrays,
              std::span<const TrustRatio> ratios) const;

 private:
  [[nodiscard]] kernels::AdamArrays at(Range range,
                                       const UpdateArrays& arrays) const;

  Adam& adam_;
  std::vector<kernels::AdamCoefficients> coefficients_;  // per group
};

/// Both passes over all parameters. `limits` are every group's. Returns each
/// parameter's ratio.
[[nodiscard]] std::vector<TrustRatio> lamb_step(
    Adam& adam, std::int64_t step, const UpdateArrays& arrays,
    std::span<const TrustLimits> limits, ThreadPool& pool);

}  // namespace thinwire::optim
