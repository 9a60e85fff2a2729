// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "apps/thinwire/replay/comparison.h"
#include "apps/thinwire/replay/recorded_case.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/semantics.h"
#include "thinwire/deepspeed/optimizers.h"
#include "thinwire/optim/low_bit_optimizer.h"

namespace thinwire::replay {

/// One step's records beside its arrays.
struct StepLog {
  Comparison& comparison;
  std::size_t step;
  const nlohmann::json& log;

  void flag(const char* name, bool got) const;
  void numbers(const char* name, std::span<const double> got) const;
  void integers(const char* name, std::span<const std::int64_t> got) const;
};

/// A low-bit optimizer of either semantics.
using AnyLowBit = std::variant<std::unique_ptr<optim::LowBitOptimizer>,
                               std::unique_ptr<deepspeed::LowBitOptimizer>>;
using MakeLowBit = std::function<AnyLowBit(comm::Communicator& comm,
                                           const ParameterLayout& layout)>;

/// Makes `Own` or `Reference`, depending on the semantics.
template <class Own, class Reference, class Options>
[[nodiscard]] MakeLowBit maker_of(config::Semantics semantics,
                                  const Options& options) {
  return [=](comm::Communicator& comm,
             const ParameterLayout& layout) -> AnyLowBit {
    if (semantics == config::Semantics::kDeepSpeed)
      return std::make_unique<Reference>(comm, layout, options);
    return std::make_unique<Own>(comm, layout, options);
  };
}

/// The peculiarities of one optimizer's recordings.
struct TrajectoryKind {
  MakeLowBit make;
  /// Compares the fields of the log that only this optimizer has.
  std::function<void(const StepLog& log, const StateDict& state)> compare_log;
  /// Whether each group is never compressed. If empty, all groups are
  /// compressed.
  std::vector<bool> exact_groups{};
  /// Whether the reference exchanges all tensors as one.
  bool is_fused = false;
};

/// Runs a recorded training on this rank and compares every step.
void replay_trajectory(const RecordedCase& recorded, comm::Communicator& comm,
                       config::Semantics semantics, Comparison& comparison,
                       const TrajectoryKind& kind);

/// Returns the layout of a case, whose tensors are tensor.0, tensor.1 and so
/// on.
[[nodiscard]] ParameterLayout layout_of(const nlohmann::json& meta);
/// Throws Unsupported naming the first key that is not in `keys`.
void require_known(const nlohmann::json& object,
                   const std::vector<std::string>& keys, const char* what);
void read_number(const nlohmann::json& from, const char* key,
                 std::optional<double>& field);
/// Reads Adam's numbers of a group, or of the optimizer as a whole.
void read_numbers(const nlohmann::json& from, optim::AdamGroup& group);
/// Returns a mask: 1 for the rows of each tensor below `rows_from`, 0 from
/// there on.
[[nodiscard]] std::vector<float> mask_of(const nlohmann::json& group,
                                         std::size_t rows_from);

/// Fills the common options of all low-bit optimizers from meta.opts and
/// meta.groups. `own` are the other keys of meta.opts.
template <class Options>
[[nodiscard]] Options common_options(const nlohmann::json& meta,
                                     std::vector<std::string> own) {
  own.insert(own.end(), {"lr", "betas", "eps", "weight_decay",
                         "bias_correction", "eps_inside_sqrt", "max_grad_norm",
                         "amsgrad", "cuda_aware", "comm_backend_name"});
  const nlohmann::json& opts = meta.at("opts");
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
  for (const nlohmann::json& group : meta.at("groups")) {
    // zero_rows_from and zero_param only say how the inputs were made.
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

}  // namespace thinwire::replay
