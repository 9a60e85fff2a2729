// SPDX-License-Identifier: Apache-2.0
#include "engine/model_parallel.h"

#include <fmt/format.h>

#include <cmath>
#include <variant>

#include "core/require.h"

namespace thinwire::engine {

namespace {

// Adds the ranks' squares in rank order.
double joined(comm::Communicator& comm, double own) {
  const double square = own * own;
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&square, 1), all);
  double sum = 0;
  for (const double part : all) sum += part;
  return std::sqrt(sum);
}

}  // namespace

ModelParallel::ModelParallel(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const config::Config& config,
                             std::span<const std::size_t> uncounted)
    : comm_(&comm) {
  require(config.semantics == config::Semantics::kCorrected, "semantics",
          "corrected with model parallelism", to_string(config.semantics));
  require(
      !std::holds_alternative<lean::LeanOnebitAdamOptions>(config.optimizer),
      "optimizer", "another one than lean_onebit_adam with model parallelism",
      config::name_of(config.optimizer));
  const auto parameters = layout.parameters();
  std::size_t least = 0;
  for (const std::size_t index : uncounted) {
    require(index >= least && index < parameters.size(), "uncounted",
            fmt::format("ascending indices below {}", parameters.size()),
            index);
    least = index + 1;
    uncounted_.push_back({parameters[index].offset, parameters[index].size});
  }
}

void ModelParallel::join(optim::StepInput& input) const {
  if (comm_ == nullptr) return;
  input.uncounted = uncounted_;
  input.whole_norm = [this](double own) { return joined(*comm_, own); };
}

}  // namespace thinwire::engine
