// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"

namespace thinwire::engine {

/// Where the time of steps went: means over `count` steps, in one line.
[[nodiscard]] std::string time_line(const EngineReport& sum,
                                    std::int64_t count);

/// What a rank's memory holds, kind by kind, and its peak, in one line.
[[nodiscard]] std::string memory_line(const char* when, const MemoryUse& use);

/// Lines of the log that an engine writes about its steps, on rank 0.
class StepNotices {
 public:
  StepNotices(const config::Config& config, int ranks);

  /// Whether after_step() tells of phases and skipped steps; true at first.
  void log_phases(bool is_logged) noexcept { logs_phases_ = is_logged; }
  /// Tells which transport is used if config.comm.backend names another one,
  /// and with memory_breakdown what memory holds. For rank 0.
  void at_start(const comm::Communicator& comm) const;
  /// After a step at a boundary, of which `optimizer` made `report`; the next
  /// one has `loss_scale`. Tells of the freeze, of the first compressed step
  /// after exact ones, and of the 1st, 2nd, 4th, 8th ... skipped step. For rank
  /// 0.
  void after_step(const EngineReport& report, const optim::Optimizer& optimizer,
                  double loss_scale);

 private:
  void tell_of_phase(const EngineReport& report, optim::Phase next);
  void add_times(const EngineReport& report);

  bool logs_phases_ = true;
  int ranks_;
  bool freezes_;  // the optimizer has an exact stage that ends
  bool has_compressed_ = false;
  std::uint64_t exact_bytes_ = 0;  // of the last exact step; 0: there was none
  config::CommBackend backend_;
  std::int64_t times_every_;  // steps per line of times; 0: none
  bool tells_memory_;
  bool is_first_ = true;
  EngineReport sum_{};
  std::int64_t summed_ = 0;
};

}  // namespace thinwire::engine
