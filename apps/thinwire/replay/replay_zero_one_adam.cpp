// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::replay {

void replay_zero_one_adam(const RecordedCase& recorded,
                          comm::Communicator& comm, config::Semantics semantics,
                          Comparison& comparison) {
  const nlohmann::json& meta = recorded.meta();
  auto options = common_options<optim::ZeroOneAdamOptions>(
      meta, {"var_freeze_step", "var_update_scaler", "local_step_scaler",
             "local_step_clipper"});
  const nlohmann::json& opts = meta.at("opts");
  const auto read = [&](const char* key, std::optional<std::int64_t>& field) {
    if (opts.contains(key)) field = opts.at(key).get<std::int64_t>();
  };
  read("var_freeze_step", options.var_freeze_step);
  read("var_update_scaler", options.var_update_scaler);
  read("local_step_scaler", options.local_step_scaler);
  read("local_step_clipper", options.local_step_clipper);

  // The schedule is the same for all tensors; it is recorded per tensor, which
  // in a fused wrapper is a group.
  std::vector<std::size_t> groups;
  for (const nlohmann::json& tensor : meta.at("tensors"))
    if (const auto group = tensor.at("group").get<std::size_t>();
        meta.at("drive") != "fp16_fused" || groups.size() == group)
      groups.push_back(group);
  const TrajectoryKind kind{
      .make = maker_of<optim::ZeroOneAdam, deepspeed::ZeroOneAdam>(semantics,
                                                                   options),
      .compare_log = [&](const StepLog& log, const StateDict& state) {
        log.flag("freeze_key", state.integer("frozen") != 0);
        for (const char* name : {"var_interval", "var_counter",
                                 "local_step_interval", "local_step_counter"})
          log.integers(name, std::vector<std::int64_t>(groups.size(),
                                                       state.integer(name)));
        const auto per_group = state.array("lrs").as<double>();
        std::vector<double> lrs;
        for (const std::size_t group : groups) lrs.push_back(per_group[group]);
        log.numbers("lrs", lrs);
      }};
  replay_trajectory(recorded, comm, semantics, comparison, kind);
}

}  // namespace thinwire::replay
