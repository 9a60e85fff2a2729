// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "optim/two_stage.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::optim {

/// What 1-bit LAMB does per parameter, in either semantics: frozen trust
/// ratios and the factors that adapt them.
struct OnebitLambStage : TwoStage {
  OnebitLambStage(comm::Communicator& c, const ParameterLayout& layout,
                  const OnebitLambOptions& o);

  OnebitLambOptions options;
  std::vector<TrustLimits> limits;  // per group
  // Per parameter.
  std::vector<double> lamb_coeffs;  // of the last step
  std::vector<double> frozen_coeffs;
  std::vector<std::int64_t> coeff_counts;  // ratios averaged so far
  std::vector<double> last_factors;
  std::vector<double> momentum_scales;  // k; empty before the compressed stage
  Buffer fresh;                         // the variance that is not frozen

  /// An exact step's ratio enters the average.
  void average_coeff(std::size_t parameter, double ratio);
  /// The frozen ratio times the factor of this compressed step. `drift` is the
  /// largest frozen over fresh denominator, `decayed` how much of the update
  /// is not decay: min(1, ||u0|| / ||u||).
  [[nodiscard]] double adapted_coeff(std::size_t parameter, double drift,
                                     double decayed);
  /// k = (mean RMS of all momenta) / (the parameter's own), 1 for a momentum of
  /// zero.
  void scale_momenta(std::span<const double> rms);

  void save_stage(StateDict& state) const override;
  [[nodiscard]] Commit read_stage(const StateDict& state) override;
};

[[nodiscard]] LowBitSettings settings_of(const OnebitLambOptions& options);

/// The reference's arithmetic, one fused exchange for the whole model.
[[nodiscard]] std::unique_ptr<OnebitLambStage> make_deepspeed_onebit_lamb(
    comm::Communicator& comm, const ParameterLayout& layout,
    const OnebitLambOptions& options);

}  // namespace thinwire::optim
