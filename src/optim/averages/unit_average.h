// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exchange/ready_ranges.h"
#include "optim/averages/kept_mean.h"
#include "optim/averages/unit_state.h"
#include "optim/averages/wide_mean.h"
#include "optim/step_pieces.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/optim/average_options.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The average of gradients in 4 or 8 bits or as low-rank products
/// (AverageOptions). Units are the layout's parameters. Results and residuals
/// do not depend on the parts, nor on which of them were averaged before the
/// step.
class UnitAverage {
 public:
  /// Parts that begin before the step have at least this many elements; 0
  /// chooses a default. The first three arguments must outlive this object.
  /// Collective.
  UnitAverage(comm::Communicator& comm, ThreadPool& pool,
              const ParameterLayout& layout, const AverageOptions& options,
              std::size_t part_elements);
  /// Blocks until nothing is in flight.
  ~UnitAverage();
  UnitAverage(const UnitAverage&) = delete;
  UnitAverage& operator=(const UnitAverage&) = delete;

  // ---- before the step
  /// Begins with the parameters that elements `range` of the gradients
  /// complete. It assumes the previous step's loss scale, so the first step
  /// does not begin early. Throws Error(kInvalidArgument) if ranges overlap.
  /// Collective, queued.
  void begin_early(View grads, Range range);
  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }

  // ---- the step
  /// Returns the averages times the loss scale, in fp32. They replace fp32
  /// gradients, unless the assumed loss scale was wrong and not 1. Parts that
  /// began with a wrong loss scale are repeated. Throws Error(kInvalidArgument)
  /// unless the step has the gradients of begin_early(), or if they were
  /// replaced under a wrong loss scale. Collective.
  [[nodiscard]] View average(const StepInput& in, StepMeter& step);
  /// Ends the step. If it does not count, or an average was not finite,
  /// residuals and factors are unchanged. Local.
  void end_step(bool counts);

  // ---- the state
  /// Throws Error(kFailedPrecondition) if a step has begun.
  void add_to(State& state) const;
  /// Takes the data of add_to() from a state, which may have other options.
  /// Adds a note on dropped data. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] Adoption adopt(StateDict& state, Notes& notes);
  /// Throws Error(kCorruptCheckpoint) unless a state in memory has this rank's
  /// residuals.
  void require_owner(const StateDict& state) const;

 private:
  struct Unit {
    std::size_t index = 0;  // in the layout
    Range range;
  };

  [[nodiscard]] bool sends() const noexcept { return comm_.size() > 1; }
  [[nodiscard]] std::unique_ptr<KeptMean> make_mean() const {
    return make_kept_mean({comm_, groups_.get()}, pool_, layout_, options_);
  }
  [[nodiscard]] bool is_wrong(const StepInput& in) const;
  void begin_parts(std::size_t least);
  void begin_part(std::size_t first, std::size_t end);
  [[nodiscard]] bool is_pending(std::size_t unit) const;
  void note(const std::vector<bool>& completed);
  void begin_anew();
  [[nodiscard]] View with_owed(const StepInput& in);

  comm::Communicator& comm_;
  ThreadPool& pool_;
  const ParameterLayout& layout_;
  const AverageOptions options_;
  const std::size_t part_;                                // elements
  const std::unique_ptr<const comm::HostGroups> groups_;  // null if flat
  std::vector<Unit> units_;         // without those that have no elements
  std::unique_ptr<KeptMean> mean_;  // null if there is only one rank
  std::optional<UnitErrors> owed_;  // of several ranks, on a single rank
  WideMean wide_;
  double waited_ = 0;                 // at the end of the last step
  std::optional<double> loss_scale_;  // of the last step

  // State of the present step.
  View grads_;
  View place_;  // destination of the averages
  double begun_scale_ = 1;
  StepReport described_;  // by KeptMean::describe_step()
  exchange::ReadyRanges ready_;
  std::vector<bool> is_begun_;  // per unit
  bool has_begun_ = false;
  bool is_finite_ = true;
};

/// Adds a note if a state has residuals of such averages, which the caller's
/// optimizer drops.
void note_unused_averages(const StateDict& state, Notes& notes);

}  // namespace thinwire::optim
