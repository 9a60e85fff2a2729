// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "optim/low_bit/freeze/freeze_point.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::optim {

/// Schedule of 0/1 Adam's steps, which are counted from 1.
class ZeroOneSchedule {
 public:
  explicit ZeroOneSchedule(const ZeroOneAdamOptions& o)
      : ZeroOneSchedule(o, zero_one_stages_of(o)) {}

  /// Returns whether a step before the freeze updates the variance.
  [[nodiscard]] bool updates_variance(std::int64_t step) const {
    return step % var_interval_ == 0;
  }
  /// Returns whether a step after the freeze ends with a sync.
  [[nodiscard]] bool syncs(std::int64_t step) const {
    return step % local_interval_ == 0;
  }
  [[nodiscard]] std::int64_t local_interval() const { return local_interval_; }
  void variance_updated();
  void local_step_taken();

  [[nodiscard]] std::string describe() const;
  void list(StateParts& parts);

 private:
  ZeroOneSchedule(const ZeroOneAdamOptions& o, const ZeroOneStages& stages)
      : kappa_(o.var_update_scaler, stages.var_update_scaler),
        alpha_(o.local_step_scaler, stages.local_step_scaler),
        clipper_(o.local_step_clipper, stages.local_step_clipper) {}

  StagePlan kappa_;
  StagePlan alpha_;
  StagePlan clipper_;
  std::int64_t var_interval_ = 1;
  std::int64_t var_counter_ = 0;
  std::int64_t local_interval_ = 1;
  std::int64_t local_counter_ = 0;
};

}  // namespace thinwire::optim
