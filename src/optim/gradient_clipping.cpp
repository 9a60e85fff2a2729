// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_clipping.h"

#include <cmath>

namespace thinwire::optim {

GradientAgreement agreement_on(const std::vector<double>& sums) {
  GradientAgreement agreement;
  double total = 0;
  for (std::size_t r = 0; r < sums.size(); ++r) {
    if (!std::isfinite(sums[r]) && agreement.nonfinite_rank < 0)
      agreement.nonfinite_rank = static_cast<int>(r);
    if (std::signbit(sums[r]) && agreement.left_out_rank < 0)
      agreement.left_out_rank = static_cast<int>(r);
    total += std::abs(sums[r]);
  }
  agreement.rms_norm = std::sqrt(total / static_cast<double>(sums.size()));
  return agreement;
}

GradientAgreement agree(comm::Communicator& comm, double own,
                        StepMeter& meter) {
  std::vector<double> sums(static_cast<std::size_t>(comm.size()));
  meter.waiting([&] { comm.all_gather(std::span(&own, 1), sums); });
  return agreement_on(sums);
}

double clip_factor(double norm, double max_norm) noexcept {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

void CalibratedNorm::measure(double mean_norm, double rms_norm) noexcept {
  if (rms_norm == 0) return;
  const double ratio = mean_norm / rms_norm;
  ratio_ = measured_ ? 0.9 * ratio_ + 0.1 * ratio : ratio;
  measured_ = true;
}

void CalibratedNorm::save(StateDict& state) const {
  state.put_real("clip_ratio", ratio_);
  state.put_integer("clip_ratio_measured", measured_ ? 1 : 0);
}

void CalibratedNorm::load(const StateDict& state) {
  const double ratio = state.real("clip_ratio");
  measured_ = state.integer("clip_ratio_measured") != 0;
  ratio_ = ratio;
}

}  // namespace thinwire::optim
