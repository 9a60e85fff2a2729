// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/optim/data_parallel.h"

namespace thinwire::optim {

/// Compares `schedule` (lines of counters and options) and a checksum of every
/// parameter. Throws Error(kCommFailure) on all ranks if they differ, with the
/// first line or parameter that does. Reads the parameters once and sends 8
/// bytes. Collective.
void verify_same(comm::Communicator& comm, ThreadPool& pool,
                 const ParameterLayout& layout, ConstView params,
                 const std::string& schedule);

/// Throws Error(kInvalidArgument) if there is no rule or an option is out of
/// range. Throws on all ranks if they pass different rules, layouts, options or
/// lines of `others`. Collective.
void require_same_rule(comm::Communicator& comm, const UpdateRule* rule,
                       const ExchangeOptions& options,
                       const std::string& others = "");
/// Number of a step and the parameters after it.
struct RuleStep {
  std::int64_t number = 0;
  ConstView params{};
};
/// Calls verify_same() after a step of a rule if the options demand it now.
/// Collective.
void verify_rule(comm::Communicator& comm, ThreadPool& pool,
                 const UpdateRule& rule, const ExchangeOptions& options,
                 const RuleStep& step);

}  // namespace thinwire::optim
