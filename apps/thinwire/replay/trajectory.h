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

/// Recorded values of one step that are not arrays.
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
}  // namespace thinwire::replay
