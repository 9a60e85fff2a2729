// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/run_notices.h"
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
  StepNotices(const config::Config& config, int rank, int ranks);

  /// Sets whether the notices of the run are logged; true at first.
  void log_phases(bool is_logged) noexcept { logs_run_ = is_logged; }
  /// Logs the transport if config.comm.backend names another one, and the
  /// memory with memory_breakdown. Warns if the variance will be frozen while
  /// the learning rate still rises.
  void at_start(const comm::Communicator& comm,
                const optim::Optimizer& optimizer) const;
  /// Continues after a load.
  void loaded(const optim::Optimizer& optimizer) {
    run_.continue_in(optimizer.progress().phase);
  }
  /// Logs new notices of the run, times and memory. Call it after a step at a
  /// boundary, with the report of `optimizer` and the loss scale of the next
  /// step.
  void after_step(const EngineReport& report, const optim::Optimizer& optimizer,
                  double loss_scale);

 private:
  void warn_of_early_freeze(std::optional<std::int64_t> freeze_step) const;
  void add_times(const EngineReport& report);

  RunNotices run_;
  bool logs_run_ = true;
  bool speaks_;
  std::string_view freeze_key_;  // of the last step that changes the variance
  std::int64_t lr_warmup_steps_;
  config::CommBackend backend_;
  std::int64_t times_every_;  // steps per line of times; 0 for no lines
  bool tells_memory_;
  bool is_first_ = true;
  EngineReport sum_{};
  std::int64_t summed_ = 0;
};

}  // namespace thinwire::engine
