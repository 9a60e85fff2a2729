// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"

namespace thinwire::engine {

/// Returns one line with the mean times of the parts of `count` steps.
[[nodiscard]] std::string time_line(const EngineReport& sum,
                                    std::int64_t count);

/// Returns one line with a rank's memory by kind, and its peak.
[[nodiscard]] std::string memory_line(const char* when, const MemoryUse& use);

/// Lines of the log that an engine writes about its steps, on rank 0.
class StepNotices {
 public:
  StepNotices(const config::Config& config, int ranks);

  /// Sets whether after_step() logs phases and skipped steps; true at first.
  void log_phases(bool is_logged) noexcept { logs_phases_ = is_logged; }
  /// Logs the transport if config.comm.backend names another one, the memory
  /// with memory_breakdown, and a warning if the variance will be frozen while
  /// the learning rate still rises. For rank 0.
  void at_start(const comm::Communicator& comm,
                const optim::Optimizer& optimizer) const;
  /// Logs the freeze, the first compressed step after exact ones, and skipped
  /// steps 1, 2, 4, 8 and so on. Call it on rank 0 after a step at a boundary,
  /// with the report of `optimizer` and the loss scale of the next step.
  void after_step(const EngineReport& report, const optim::Optimizer& optimizer,
                  double loss_scale);

 private:
  void warn_of_early_freeze(std::optional<std::int64_t> freeze_step) const;
  void tell_of_phase(const EngineReport& report, optim::Phase next);
  [[nodiscard]] std::string what_travels(optim::Phase phase) const;
  void add_times(const EngineReport& report);

  bool logs_phases_ = true;
  int ranks_;
  std::string_view freeze_key_;  // of the last step that changes the variance
  std::int64_t lr_warmup_steps_;
  bool has_compressed_ = false;
  std::uint64_t exact_bytes_ = 0;  // of the last exact step; 0 without one
  std::int64_t syncs_every_;       // of an outer loop; 0 without one
  config::CommBackend backend_;
  std::int64_t times_every_;  // steps per line of times; 0 for no lines
  bool tells_memory_;
  bool is_first_ = true;
  EngineReport sum_{};
  std::int64_t summed_ = 0;
};

}  // namespace thinwire::engine
