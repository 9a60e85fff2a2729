// SPDX-License-Identifier: Apache-2.0
// This file replays trajectories of the three low-bit optimizers. It reads
// their options, and the fields of the log that only one of them has.
#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::replay {

namespace {

using nlohmann::json;

// Makes `Own` or `Reference`, depending on the semantics.
template <class Own, class Reference, class Options>
MakeLowBit maker_of(config::Semantics semantics, const Options& options) {
  return [=](comm::Communicator& comm,
             const ParameterLayout& layout) -> AnyLowBit {
    if (semantics == config::Semantics::kDeepSpeed)
      return std::make_unique<Reference>(comm, layout, options);
    return std::make_unique<Own>(comm, layout, options);
  };
}

// Returns a mask: 1 for the rows of each tensor below `rows_from`, 0 from there
// on.
std::vector<float> mask_of(const json& group, std::size_t rows_from) {
  std::vector<float> mask;
  for (const json& shape : group.at("shapes")) {
    std::size_t row = 1;
    for (std::size_t axis = 1; axis < shape.size(); ++axis)
      row *= shape[axis].get<std::size_t>();
    const std::size_t rows = shape.empty() ? 1 : shape[0].get<std::size_t>();
    for (std::size_t r = 0; r < rows; ++r)
      mask.insert(mask.end(), row, r < rows_from ? 1.0f : 0.0f);
  }
  return mask;
}

// Fills the common options of all low-bit optimizers from meta.opts and
// meta.groups. `own` are the other keys of meta.opts.
template <class Options>
Options common_options(const json& meta, std::vector<std::string> own) {
  own.insert(own.end(), {"lr", "betas", "eps", "weight_decay",
                         "bias_correction", "eps_inside_sqrt", "max_grad_norm",
                         "amsgrad", "cuda_aware", "comm_backend_name"});
  const json& opts = meta.at("opts");
  require_known(opts, own, "meta.opts");
  Options options;
  optim::AdamGroup defaults;
  read_numbers(opts, defaults);
  options.learning_rate =
      defaults.learning_rate.value_or(options.learning_rate);
  options.beta1 = defaults.beta1.value_or(options.beta1);
  options.beta2 = defaults.beta2.value_or(options.beta2);
  options.epsilon = defaults.epsilon.value_or(options.epsilon);
  options.weight_decay = defaults.weight_decay.value_or(options.weight_decay);
  options.bias_correction = opts.value("bias_correction", true);
  options.epsilon_inside_sqrt = opts.value("eps_inside_sqrt", false);
  if (opts.value("amsgrad", false)) throw Unsupported("meta.opts \"amsgrad\"");
  options.compression.exchange.max_grad_norm = opts.value("max_grad_norm", 0.0);
  for (const json& group : meta.at("groups")) {
    // zero_rows_from and zero_param only describe how the inputs were made.
    std::vector<std::string> keys = {
        "shapes",         "lr",           "betas",     "eps", "mask",
        "zero_rows_from", "weight_decay", "zero_param"};
    auto& to = options.groups.emplace_back();
    if constexpr (requires { to.non_freeze; }) {
      keys.push_back("non_freeze");
      to.non_freeze = group.value("non_freeze", false);
    }
    if constexpr (requires { to.max_coeff; }) {
      keys.insert(keys.end(), {"max_coeff", "min_coeff"});
      read_number(group, "max_coeff", to.max_coeff);
      read_number(group, "min_coeff", to.min_coeff);
    }
    require_known(group, keys, "meta.groups key");
    read_numbers(group, to);
    if (group.contains("mask"))
      to.exp_avg_mask =
          mask_of(group, group.at("mask").at("rows_from").get<std::size_t>());
  }
  return options;
}

}  // namespace

void replay_onebit_adam(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison) {
  const json& meta = recorded.meta();
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

void replay_onebit_lamb(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison) {
  const json& meta = recorded.meta();
  auto options = common_options<optim::OnebitLambOptions>(
      meta, {"freeze_step", "max_coeff", "min_coeff", "coeff_beta",
             "factor_max", "factor_min", "factor_threshold"});
  const json& opts = meta.at("opts");
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

void replay_zero_one_adam(const RecordedCase& recorded,
                          comm::Communicator& comm, config::Semantics semantics,
                          Comparison& comparison) {
  const json& meta = recorded.meta();
  auto options = common_options<optim::ZeroOneAdamOptions>(
      meta, {"var_freeze_step", "var_update_scaler", "local_step_scaler",
             "local_step_clipper"});
  const json& opts = meta.at("opts");
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
  for (const json& tensor : meta.at("tensors"))
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
