// SPDX-License-Identifier: Apache-2.0
#include "optim/verification.h"

#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

void verify_same(comm::Communicator& comm, ThreadPool& pool,
                 const ParameterLayout& layout, ConstView params,
                 const std::string& schedule) {
  const auto parameters = layout.parameters();
  std::vector<std::uint64_t> checksums(parameters.size());
  pool.for_each(parameters.size(), [&](std::size_t i) {
    checksums[i] =
        checksum(params.subview(parameters[i].offset, parameters[i].size));
  });
  std::string text = schedule;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    fmt::format_to(std::back_inserter(text), "parameter {} checksum {:016x}\n",
                   parameters[i].name, checksums[i]);
  try {
    comm::require_same(comm, "parameters and schedule", text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kCommFailure,
                fmt::format("verification failed: {}", error.what()));
  }
}

void require_same_rule(comm::Communicator& comm, const UpdateRule* rule,
                       const ExchangeOptions& options,
                       const std::string& others) {
  options.validate();
  if (rule == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "rule must be an update rule, got null");
  comm::require_same(comm, "parameter layout and options",
                     rule->layout().describe() + rule->describe() +
                         options.describe() + others);
}

void verify_rule(comm::Communicator& comm, ThreadPool& pool,
                 const UpdateRule& rule, const ExchangeOptions& options,
                 const RuleStep& step) {
  if (options.verify_every == 0 || step.number % options.verify_every != 0)
    return;
  verify_same(comm, pool, rule.layout(), step.params,
              fmt::format("step {}\n{}{}", step.number, rule.describe(),
                          options.describe()));
}

}  // namespace thinwire::optim
