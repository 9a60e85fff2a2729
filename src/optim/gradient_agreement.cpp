// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

void require_same_optimizer(std::span<const GradientSummary> ranks,
                            std::size_t rank) {
  if (ranks[rank].optimizer == ranks[0].optimizer) return;
  throw Error(ErrorCode::kFailedPrecondition,
              fmt::format("step: ranks 0 and {} are in a step of different "
                          "optimizers; all ranks must take the steps of "
                          "several optimizers in the same order",
                          rank));
}

void require_same_masks(std::span<const GradientSummary> ranks,
                        std::size_t rank) {
  if (ranks[rank].masks == ranks[0].masks) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("exp_avg_mask must be the same on all ranks: that of "
                          "rank {} is not rank 0's",
                          rank));
}

}  // namespace

static_assert(sizeof(GradientSummary) == 16, "it travels as its bytes");

Agreement agreement_on(std::span<const GradientSummary> ranks) {
  Agreement agreement;
  const double first = ranks[0].squares;
  agreement.equal_norms = ranks.size() > 1 && first > 0 && std::isfinite(first);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    require_same_optimizer(ranks, r);
    require_same_masks(ranks, r);
    if (!std::isfinite(ranks[r].squares) && agreement.nonfinite_rank < 0)
      agreement.nonfinite_rank = static_cast<int>(r);
    if (ranks[r].left_out != 0 && agreement.left_out_rank < 0)
      agreement.left_out_rank = static_cast<int>(r);
    agreement.any_late = agreement.any_late || ranks[r].late != 0;
    agreement.any_unlike_early =
        agreement.any_unlike_early || ranks[r].unlike_early != 0;
    agreement.equal_norms = agreement.equal_norms && ranks[r].squares == first;
    agreement.squares += ranks[r].squares;
  }
  agreement.rms_norm =
      std::sqrt(agreement.squares / static_cast<double>(ranks.size()));
  return agreement;
}

Agreement agree(comm::Communicator& comm, const GradientSummary& own,
                StepMeter& meter) {
  std::vector<GradientSummary> all(static_cast<std::size_t>(comm.size()));
  meter.waiting([&] {
    comm.all_gather(ConstView(&own, sizeof own, DType::kUInt8),
                    View(all.data(), all.size() * sizeof own, DType::kUInt8));
  });
  return agreement_on(all);
}

// Two optimizers never have the same count of collectives, because the
// construction of an optimizer contains one.
std::uint32_t optimizer_number(const comm::Communicator& comm) {
  return static_cast<std::uint32_t>(comm.counters().collectives);
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
  const double ratio = saved_real(state, "clip_ratio", Sign::kNotNegative);
  measured_ = state.integer("clip_ratio_measured") != 0;
  ratio_ = ratio;
}

double LaggedNorm::take(double rms_norm) noexcept {
  const double before = reference_;
  const bool is_spike = rms_norm > 2 * before;
  // A norm of NaN leaves the reference unchanged.
  reference_ = before == 0 || rms_norm < 2 * before ? rms_norm : 2 * before;
  return is_spike ? rms_norm : before;
}

void LaggedNorm::save(StateDict& state) const {
  state.put_real("clip_reference", reference_);
}

void LaggedNorm::load(const StateDict& state) {
  if (state.has_scalar("clip_reference"))
    reference_ = saved_real(state, "clip_reference", Sign::kNotNegative);
}

void LaggedNorm::rescale(const CalibratedNorm& from,
                         const CalibratedNorm& to) noexcept {
  reference_ *= from.estimate(1) / to.estimate(1);
}

void CalibratedNorm::rescale(std::int64_t from, std::int64_t to) noexcept {
  if (from == to || !measured_) return;
  if (to == 1 || from == 1) {
    ratio_ = 1;
    measured_ = false;
    return;
  }
  const double square = std::min(1.0, ratio_ * ratio_);
  const auto ranks = static_cast<double>(to);
  const double signal = static_cast<double>(from) * square - 1;
  const double noise = (1 - square) / signal;
  ratio_ =
      std::sqrt(signal <= 0 ? 1 / ranks : (1 + noise) / (1 + ranks * noise));
}

}  // namespace thinwire::optim
