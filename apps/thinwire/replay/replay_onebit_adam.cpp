// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::replay {

void replay_onebit_adam(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison) {
  const nlohmann::json& meta = recorded.meta();
  auto options =
      common_options<optim::OnebitAdamOptions>(meta, {"freeze_step"});
  options.freeze.step =
      meta.at("opts").value("freeze_step", optim::kDefaultFreezeStep);
  TrajectoryKind kind{
      .make = maker_of<optim::OnebitAdam, deepspeed::OnebitAdam>(semantics,
                                                                 options),
      .compare_log = [](const StepLog& log, const StateDict& state) {
        log.flag("freeze_key", state.integer("frozen_at") > 0);
      }};
  for (const auto& group : options.groups)
    kind.exact_groups.push_back(group.non_freeze);
  replay_trajectory(recorded, comm, semantics, comparison, kind);
}

}  // namespace thinwire::replay
