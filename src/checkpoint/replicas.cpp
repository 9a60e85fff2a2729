// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/rows.h"
#include "optim/saved_state.h"
#include "optim/state_pieces.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {

namespace {

using optim::Axis;
using optim::Sharing;
using optim::StateArray;

std::string lines_of(const char* what, const StateDict& state) {
  std::string text;
  for (const auto& [name, value] : state.scalars())
    std::visit(
        [&, key = &name](const auto& v) {
          fmt::format_to(std::back_inserter(text), "{} {} {}\n", what, *key, v);
        },
        value);
  for (const auto& [name, values] : state.arrays())
    fmt::format_to(std::back_inserter(text), "{} {} {:016x}\n", what, name,
                   checksum(values.view()));
  return text;
}

std::string dtypes_of(ConstView params) {
  std::string text = to_string(params.dtype());
  if (params.is_joined())
    text += fmt::format(" and {} from {}", to_string(params.parts()[1].dtype()),
                        params.first_size());
  return text;
}

std::string description(const Training& training, const optim::State& state,
                        const Extra& extra, const SaveOptions& options) {
  std::string text = fmt::format(
      "step {}\ndtype {}\nasynchronous {}\ndurable {}\ncheck_replicas {}\n"
      "storage {}\nfrozen {}\n",
      training.step, dtypes_of(training.params), options.asynchronous,
      options.durable, options.check_replicas,
      static_cast<int>(options.storage), options.frozen);
  text += lines_of("scalar", state.common);
  text += lines_of("scalar", training.scalars);
  text += lines_of("extra", extra.common);
  for (const StateArray& array : state.arrays)
    fmt::format_to(
        std::back_inserter(text), "array {} {} {} {} {}\n", array.name,
        to_string(array.axis), to_string(array.sharing), to_string(array.dtype),
        array.sharing == Sharing::kSame && training.experts.empty() ? array.size
                                                                    : 0);
  return text;
}

std::uint64_t checksum_of(optim::StatePieces& pieces, Range range) {
  Checksum checksum;
  static_cast<void>(pieces.all_of(range, [&](ConstView values) {
    checksum.add(values);
    return true;
  }));
  return checksum.take();
}

// Returns checksums of the parameters in `is_held`, one per parameter so that
// an error can name the difference.
std::string checksums(const ParameterLayout& layout, const StateArray& array,
                      const std::vector<bool>& is_held) {
  optim::StatePieces pieces(array);
  if (array.axis != Axis::kElement)
    return fmt::format("{} {:016x}\n", array.name,
                       checksum_of(pieces, {0, array.size}));
  std::string text;
  std::size_t begin = 0;
  for (const Row& row : rows_of(layout, array.ranges)) {
    if (is_held[row.parameter])
      fmt::format_to(std::back_inserter(text), "{} of {}: {:016x}\n",
                     array.name, layout.parameters()[row.parameter].name,
                     checksum_of(pieces, {begin, row.range.size}));
    begin += row.range.size;
  }
  return text;
}

void require_same_values(const Training& training, const optim::State& state,
                         const optim::HeldParameters& held, bool is_dense) {
  const ConstView weights =
      optim::exchanged_params(training.optimizer, training.params);
  std::vector<bool> is_held(training.layout.parameters().size());
  std::string values;
  const bool are_own = state.find(kOwnParameters) != nullptr;
  for (const std::size_t i : held.parameters) {
    const Parameter& p = training.layout.parameters()[i];
    is_held[i] = true;
    if (are_own) continue;
    fmt::format_to(std::back_inserter(values), "parameter {}: {:016x}\n",
                   p.name, checksum(weights.subview(p.offset, p.size)));
  }
  for (const StateArray& array : state.arrays)
    if (array.sharing == Sharing::kSame && !array.is_parameters &&
        (is_dense || array.axis == Axis::kElement))
      values += checksums(training.layout, array, is_held);
  comm::require_same(*held.comm, "values that should be equal on all ranks",
                     values);
}

// ---- usable values

// Checks the values of an array. Ranks divide the check of common values among
// them.
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

// Returns the name of the first unusable values of this rank, or an empty text.
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

void require_same_replicas(comm::Communicator& comm, const Training& training,
                           const optim::State& state, const Extra& extra,
                           const SaveOptions& options) {
  if (comm.size() == 1) return;
  optim::require_same_parameters(comm, training.layout, training.experts,
                                 "what is to be saved",
                                 description(training, state, extra, options));
  if (!options.check_replicas) return;
  const auto held =
      optim::held_parameters(comm, training.layout, training.experts);
  require_same_values(training, state, held.front(), true);
  optim::for_experts(comm, held, [&](const optim::HeldParameters& experts) {
    require_same_values(training, state, experts, false);
  });
}

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
