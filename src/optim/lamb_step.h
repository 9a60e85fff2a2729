// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/optim/lamb.h"

namespace thinwire::optim {

/// The limits of a trust ratio.
struct TrustLimits {
  double min_coeff = 0.01;
  double max_coeff = 10;
};

[[nodiscard]] TrustRatio trust_ratio(const NormSums& sums, TrustLimits limits);

/// The two passes of one exact step of LAMB on the moments that `adam` holds.
/// Each works on the caller's thread; different parts may be worked on at once.
class LambStep {
 public:
  LambStep(Adam& adam, std::int64_t step, float grad_scale);

  /// As UpdateRule::measure().
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

/// Both passes over all parameters. Returns each one's ratio.
[[nodiscard]] std::vector<TrustRatio> lamb_step(Adam& adam, std::int64_t step,
                                                const UpdateArrays& arrays,
                                                TrustLimits limits,
                                                ThreadPool& pool);

}  // namespace thinwire::optim
