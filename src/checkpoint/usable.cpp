// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/usable.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/rows.h"
#include "optim/saved_state.h"
#include "optim/state_pieces.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {

namespace {

// Each rank checks a share of values that all ranks have in common.
bool is_usable(const optim::StateArray& array, const comm::Communicator& comm) {
  const Range own = array.sharing == optim::Sharing::kSame
                        ? share_of(array.size, comm.rank(), comm.size())
                        : Range{0, array.size};
  return optim::StatePieces(array).all_of(own, [](ConstView values) {
    return !optim::first_unusable(values).has_value();
  });
}

bool are_usable(ConstView params, const comm::Communicator& comm) {
  const Range own = share_of(params.size(), comm.rank(), comm.size());
  const auto parts = params.subview(own.offset, own.size).parts();
  return std::ranges::none_of(parts, [](const ConstView& part) {
    return optim::first_unusable(part).has_value();
  });
}

bool is_usable(const StateDict::Scalar& scalar) {
  const double* real = std::get_if<double>(&scalar);
  return !real || !optim::first_unusable(std::span(real, 1));
}

// Empty: all values of this rank can be used.
std::string first_unusable(const Training& training, const optim::State& state,
                           const comm::Communicator& comm) {
  if (!are_usable(optim::exchanged_params(training.optimizer, training.params),
                  comm))
    return "parameters";
  for (const optim::StateArray& array : state.arrays)
    if (!is_usable(array, comm))
      return fmt::format("values of '{}'", array.name);
  for (const StateDict* scalars : {&state.common, &state.own})
    for (const auto& [name, scalar] : scalars->scalars())
      if (!is_usable(scalar)) return fmt::format("values of '{}'", name);
  return {};
}

}  // namespace

bool are_usable(comm::Communicator& comm, const Training& training,
                const optim::State& state) {
  const std::vector<std::string> found =
      comm::gather_texts(comm, first_unusable(training, state, comm));
  const auto first = std::ranges::find_if_not(found, &std::string::empty);
  if (first == found.end()) return true;
  if (comm.rank() == 0)
    log(LogLevel::kWarning,
        fmt::format(
            "step {}: rank {} has {} that are not finite, or above 1e30 "
            "in magnitude: no run can continue with this checkpoint; the "
            "newest one that a run can continue with stays beside it",
            training.step, first - found.begin(), *first));
  return false;
}

}  // namespace thinwire::checkpoint
