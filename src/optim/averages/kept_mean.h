// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "exchange/pipeline/pipeline.h"
#include "exchange/units/unit_mean.h"
#include "optim/averages/unit_state.h"
#include "optim/saved_state.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/average_options.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Names of the residuals in a state.
inline constexpr const char* kAverageWorkerError = "average.worker_error";
inline constexpr const char* kAverageServerError = "average.server_error";

inline constexpr const char* kAverageBits = "average_bits";
inline constexpr const char* kLowRank = "low_rank";

/// Returns the bits and the low rank of a state; both are 0 if it names
/// neither. Throws Error(kCorruptCheckpoint) if they are out of range, or if a
/// state has some parts of the factors and lacks others.
[[nodiscard]] AverageOptions saved_average(const StateDict& state);

/// An average in units and the data that it keeps between steps.
class KeptMean {
 public:
  KeptMean() = default;
  virtual ~KeptMean() = default;
  KeptMean(const KeptMean&) = delete;
  KeptMean& operator=(const KeptMean&) = delete;

  [[nodiscard]] virtual exchange::UnitMean& mean() = 0;
  /// Sets the report's `bits` and `low_rank` to those of the next step.
  virtual void describe_step(StepReport& report) const = 0;
  /// Returns the elements whose residuals this rank has.
  [[nodiscard]] virtual UnitResidualParts parts() const = 0;
  /// Returns a checksum of the hosts and of the server of every element.
  [[nodiscard]] virtual std::int64_t servers() const = 0;

  /// Adds residuals and all other kept data to a state.
  virtual void add_to(State& state) = 0;
  /// Throws Error(kCorruptCheckpoint) unless a state of these parameters, saved
  /// by this rank, contains the data that its options require.
  virtual void require_own(const StateDict& state) const = 0;
  /// Continues with the residuals, if given, and with the usable data of a
  /// state of any options. Notes data that does not fit.
  virtual void load(const std::optional<UnitErrors>& errors,
                    const StateDict& state, Notes& notes) = 0;
};

/// Creates the average for AverageOptions that are not exact. Local.
[[nodiscard]] std::unique_ptr<KeptMean> make_kept_mean(
    const exchange::Route& route, ThreadPool& pool,
    const ParameterLayout& layout, const AverageOptions& options);

}  // namespace thinwire::optim
