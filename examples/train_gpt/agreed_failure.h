// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "thinwire/comm/communicator.h"

namespace thinwire::train_gpt {

/// A failure that all ranks know of, so that each can end in good order. One of
/// them throws this.
class AgreedFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs `prepare`, which must not communicate, on every rank. Returns true on
/// all ranks if none of them threw. Otherwise the lowest rank that threw throws
/// AgreedFailure with its message, and the others return false. Collective.
template <class Prepare>
[[nodiscard]] bool prepare_everywhere(comm::Communicator& comm,
                                      Prepare&& prepare) {
  std::string failure;
  std::int32_t severity = 0;  // Higher for a lower rank.
  const std::int32_t mine = comm.size() - comm.rank();
  try {
    std::forward<Prepare>(prepare)();
  } catch (const std::exception& error) {
    failure = error.what();
    severity = mine;
  }
  comm.all_reduce(std::span(&severity, 1), comm::ReduceOp::kMax);
  if (severity == mine) throw AgreedFailure(failure);
  return severity == 0;
}

}  // namespace thinwire::train_gpt
