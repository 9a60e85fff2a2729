// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/optim/onebit_lamb.h"

namespace thinwire::replay {

void replay_onebit_lamb(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison) {
  const nlohmann::json& meta = recorded.meta();
  auto options = common_options<optim::OnebitLambOptions>(
      meta, {"freeze_step", "max_coeff", "min_coeff", "coeff_beta",
             "factor_max", "factor_min", "factor_threshold"});
  const nlohmann::json& opts = meta.at("opts");
  options.freeze.step = opts.value("freeze_step", optim::kDefaultFreezeStep);
  options.max_coeff = opts.value("max_coeff", options.max_coeff);
  options.min_coeff = opts.value("min_coeff", options.min_coeff);
  options.coeff_beta = opts.value("coeff_beta", options.coeff_beta);
  options.factor_max = opts.value("factor_max", options.factor_max);
  options.factor_min = opts.value("factor_min", options.factor_min);
  options.factor_threshold =
      opts.value("factor_threshold", options.factor_threshold);
  const TrajectoryKind kind{
      .make = maker_of<optim::OnebitLamb, deepspeed::OnebitLamb>(semantics,
                                                                 options),
      .compare_log =
          [](const StepLog& log, const StateDict& state) {
            log.flag("freeze_key", state.integer("frozen_at") > 0);
            for (const char* name :
                 {"lamb_coeffs", "lamb_coeff_freeze", "last_factor"})
              log.numbers(name, state.array(name).as<double>());
            if (state.has_array("scaling_coeff"))
              log.numbers("scaling_coeff",
                          state.array("scaling_coeff").as<double>());
          },
      .is_fused = true};
  replay_trajectory(recorded, comm, semantics, comparison, kind);
}

}  // namespace thinwire::replay
