// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "exchange/exact_average.h"
#include "exchange/wait_meter.h"
#include "optim/averages/unit_state.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/low_bit_mean.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::outer {

/// Average of gradients before the first local step, exact or low-bit.
class WarmUp {
 public:
  /// `groups` belongs to `comm`, or is null if hosts are flat. All arguments
  /// must outlive this object.
  WarmUp(comm::Communicator& comm, const comm::HostGroups* groups,
         ThreadPool& pool, const ParameterLayout& layout, int bits,
         std::size_t bucket_elements);

  /// Replaces gradients, multiplied by `loss_scale`, with their sum or mean
  /// over the ranks. Collective. Returns the divisor that turns the result into
  /// a mean.
  [[nodiscard]] double average(View grads, double loss_scale,
                               exchange::WaitMeter& meter);

  /// Frees the residuals and records. Only adopt() may follow.
  void release() noexcept { few_bits_.reset(); }

  /// Adds the residuals to a state. Adds nothing if gradients are sent exactly.
  void add_to(optim::State& state) const;
  /// Takes the residuals from a state made by add_to(); missing residuals start
  /// at 0. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] optim::Adoption adopt(StateDict& state);

 private:
  comm::Communicator& comm_;
  const comm::HostGroups* groups_;
  ThreadPool& pool_;
  const ParameterLayout& layout_;
  std::vector<std::size_t> units_;
  int bits_;
  std::unique_ptr<exchange::ExactAverage> exact_;   // if bits = 0
  std::unique_ptr<exchange::LowBitMean> few_bits_;  // unless released

  [[nodiscard]] std::unique_ptr<exchange::LowBitMean> make_few_bits() const;
  [[nodiscard]] static optim::UnitResidualParts parts_of(
      const exchange::LowBitMean& mean);
};

}  // namespace thinwire::outer
