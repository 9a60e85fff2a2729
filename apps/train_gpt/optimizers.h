// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "apps/train_gpt/options.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::train_gpt {

/// One value of --optimizer.
struct OptimizerEntry {
  std::string_view name;
  /// Options::lr where no flag gives it.
  double lr = 0;
  /// Local; throws Error(kInvalidArgument) for options it cannot honour.
  void (*validate)(const Options&, const ParameterLayout&);
  /// Collective.
  std::unique_ptr<optim::Optimizer> (*make)(const Options&,
                                            const ParameterLayout&,
                                            comm::Communicator&);
};

/// Null if there is none of this name.
[[nodiscard]] const OptimizerEntry* find_optimizer(std::string_view name);
[[nodiscard]] std::vector<std::string_view> optimizer_names();

}  // namespace thinwire::train_gpt
