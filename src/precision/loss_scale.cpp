// SPDX-License-Identifier: Apache-2.0
#include "precision/loss_scale.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "thinwire/core/error.h"

namespace thinwire::precision {

namespace {

// Describes where the gradients are. `all` holds each rank's first parameter
// with a non-finite gradient.
std::string place_of(const NonFiniteGradients& gradients,
                     const ParameterLayout& layout,
                     const std::vector<std::int64_t>& all) {
  const auto name = [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    return i < layout.parameters().size() ? layout.parameters()[i].name
                                          : "an expert of another rank";
  };
  if (gradients.is_averaged) {
    std::int64_t first = -1;
    for (const std::int64_t index : all)
      if (index >= 0 && (first < 0 || index < first)) first = index;
    return first < 0 ? "in their norm"
                     : fmt::format("first in '{}'", name(first));
  }
  const int rank = gradients.rank;
  if (rank < 0 || all[static_cast<std::size_t>(rank)] < 0)
    return "in the sum over all ranks";
  return fmt::format("first in '{}' on rank {}",
                     name(all[static_cast<std::size_t>(rank)]), rank);
}

}  // namespace

LossScale::LossScale(DType params, const LossScalerOptions& options)
    : LossScale(params, params == DType::kFloat16 ? LossScaler(options)
                                                  : LossScaler()) {}

LossScale::LossScale(DType params, const LossScaler& scaler)
    : is_used_(params == DType::kFloat16),
      scaler_(is_used_ ? scaler
                       : LossScaler({.initial_scale = 1, .dynamic = false})) {}

void LossScale::set(double scale) {
  if (!is_used_)
    throw Error(ErrorCode::kFailedPrecondition,
                "set_loss_scale: the loss scale is 1 unless parameters are "
                "fp16");
  scaler_.set_scale(scale);
}

bool LossScale::is_last_chance() const noexcept {
  return is_used_ && scaler_.is_at_minimum() &&
         scaler_.options().at_minimum == AtMinimum::kStop;
}

void LossScale::update(bool overflow) {
  if (is_used_) scaler_.update(overflow);
}

void LossScale::load_if_there(const StateDict& state) {
  if (is_used_ && state.has_scalar("loss_scale")) scaler_.load(state);
}

void LossScale::require_in(const StateDict& state) const {
  LossScaler copy = scaler_;
  if (is_used_) copy.load(state);
}

void LossScale::stop(comm::Communicator& comm, const ParameterLayout& layout,
                     const NonFiniteGradients& gradients) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&gradients.first, 1), all);
  const double minimum = scaler_.options().min_scale;
  const std::string place = place_of(gradients, layout, all);
  const std::int64_t step = gradients.last_good_step;
  throw Error(
      ErrorCode::kNonFinite,
      gradients.is_averaged
          ? fmt::format("the loss scale is at its minimum of {} and averaged "
                        "gradients are still not finite, {}; the last good "
                        "step was {}",
                        minimum, place, step)
          : fmt::format("the loss scale is at its minimum of {} and gradients "
                        "are still not finite, {}; the last good step was {}",
                        minimum, place, step));
}

}  // namespace thinwire::precision
