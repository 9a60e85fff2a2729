// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/optim/data_parallel.h"

namespace thinwire::optim {

/// Collective: compares `schedule` (lines of counters and options) and a
/// checksum of every parameter. Throws Error(kCommFailure) on all ranks if two
/// differ, with the first line or parameter in which they do. Reads the
/// parameters once and sends 8 bytes.
void verify_same(comm::Communicator& comm, ThreadPool& pool,
                 const ParameterLayout& layout, ConstView params,
                 const std::string& schedule);

/// Throws Error(kInvalidArgument) if there is no rule or an option is out of
/// range. Throws on all ranks if they pass different rules, layouts, options or
/// lines of `others`. Collective.
void require_same_rule(comm::Communicator& comm, const UpdateRule* rule,
                       const ExchangeOptions& options,
                       const std::string& others = "");
/// Step `number`, and the parameters that it has left.
struct RuleStep {
  std::int64_t number = 0;
  ConstView params{};
};
/// Collective, after a step of a rule: verify_same() where the options say
/// that it is time.
void verify_rule(comm::Communicator& comm, ThreadPool& pool,
                 const UpdateRule& rule, const ExchangeOptions& options,
                 const RuleStep& step);

}  // namespace thinwire::optim
