// SPDX-License-Identifier: Apache-2.0
#include "engine/step_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <variant>

#include "thinwire/core/log.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::engine {

using config::CommBackend;

namespace {

constexpr std::int64_t kDeepSpeedsStepsPerPrint = 10;

std::string_view name_of(CommBackend backend) {
  constexpr std::string_view kNames[] = {"", "nccl", "hccl", "mpi", "gloo"};
  return kNames[static_cast<std::size_t>(backend)];
}

// Returns the number of steps in which the learning rate rises, according to
// the configuration's schedule or its lr_warmup_steps.
std::int64_t lr_warmup_steps_of(const config::Config& config) {
  return std::visit(
      [&](const auto& options) {
        std::int64_t steps = config.schedule.warmup_steps();
        if constexpr (requires { options.freeze; })
          steps = std::max(steps, options.freeze.lr_warmup_steps.value_or(0));
        return steps;
      },
      config.optimizer);
}

std::string megabytes(double bytes) {
  return fmt::format("{:.4g} MB", bytes / 1e6);
}

void log_all(const RunNotices::Notices& notices) {
  for (const auto& [kind, text] : notices)
    log(kind == RunNotices::Kind::kMistake ? LogLevel::kWarning
                                           : LogLevel::kInfo,
        text);
}

}  // namespace

std::string time_line(const EngineReport& sum, std::int64_t count) {
  const auto steps = static_cast<double>(count);
  const auto ms = [&](double seconds) {
    return fmt::format("{:.3g} ms", seconds / steps * 1e3);
  };
  return fmt::format(
      "time per step, mean of {} steps up to {}: backward {}, step() {}, "
      "waiting for ranks {}, exchange in flight {} ({:.0f} % of it beside "
      "computation), {} sent",
      count, sum.steps, ms(sum.backward_seconds), ms(sum.seconds),
      ms(sum.exchange_seconds), ms(sum.comm_busy_seconds),
      overlap_of(sum) * 100,
      megabytes(static_cast<double>(sum.bytes_sent) / steps));
}

std::string memory_line(const char* when, const MemoryUse& use) {
  const auto now = [&](MemoryKind kind) {
    return megabytes(static_cast<double>(use.now_of(kind)));
  };
  return fmt::format(
      "memory of this rank {}: {} (peak {}): parameters {}, gradients {}, "
      "states {}, buckets {}, other {}",
      when, megabytes(static_cast<double>(use.total())),
      megabytes(static_cast<double>(use.peak())), now(MemoryKind::kParameters),
      now(MemoryKind::kGradients), now(MemoryKind::kStates),
      now(MemoryKind::kBuckets), now(MemoryKind::kOther));
}

StepNotices::StepNotices(const config::Config& config, int rank, int ranks)
    : run_(config, rank, ranks,
           "If they read the same data, give each its own. If gradients are "
           "averages already, results are right, but no bytes are saved: pass "
           "those of each rank"),
      speaks_(rank == 0),
      freeze_key_(freeze_key_of(config)),
      lr_warmup_steps_(lr_warmup_steps_of(config)),
      backend_(config.comm.backend),
      times_every_(!config.wall_clock_breakdown ? 0
                   : config.steps_per_print > 0 ? config.steps_per_print
                                                : kDeepSpeedsStepsPerPrint),
      tells_memory_(config.memory_breakdown) {}

void StepNotices::at_start(const comm::Communicator& comm,
                           const optim::Optimizer& optimizer) const {
  if (!speaks_) return;
  warn_of_early_freeze(optimizer.progress().freeze_step);
  const std::string_view wanted = name_of(backend_);
  const bool is_device =
      backend_ == CommBackend::kNccl || backend_ == CommBackend::kHccl;
  if (!wanted.empty() && comm.size() > 1 &&
      comm.backend().find(wanted) == std::string_view::npos)
    log(LogLevel::kInfo,
        fmt::format("comm_backend_name is {}, and ranks exchange over {}: {}",
                    wanted, comm.backend(),
                    is_device
                        ? "tensors are on the CPU"
                        : "the program, or THINWIRE_COMM, has chosen it"));
  if (tells_memory_)
    log(LogLevel::kInfo, memory_line("at the start", memory_use()));
}

// Gradients of the first steps are large, so a variance that is frozen then is
// too large.
void StepNotices::warn_of_early_freeze(
    std::optional<std::int64_t> freeze_step) const {
  const std::int64_t step = freeze_step.value_or(0);
  if (freeze_key_.empty() || step <= 0 || step >= lr_warmup_steps_) return;
  log(LogLevel::kWarning,
      fmt::format("{0} is {1}, and the learning rate rises until step {2}: a "
                  "variance that is frozen in the warm-up costs loss. Set {0} "
                  "to {2} or more, or let the learning rate rise in fewer "
                  "steps",
                  freeze_key_, step, lr_warmup_steps_));
}

void StepNotices::after_step(const EngineReport& report,
                             const optim::Optimizer& optimizer,
                             double loss_scale) {
  const optim::Progress progress = optimizer.progress();
  if (is_first_ && logs_run_) log_all(run_.at_start(progress.freeze_step));
  const auto notices =
      run_.after_step(report, {.steps = report.steps,
                               .skipped = progress.skipped,
                               .freeze_step = progress.freeze_step,
                               .loss_scale = loss_scale});
  if (logs_run_) log_all(notices);
  if (!speaks_) return;
  if (is_first_ && tells_memory_)
    log(LogLevel::kInfo, memory_line("after the first step", memory_use()));
  is_first_ = false;
  if (times_every_ > 0) add_times(report);
}

void StepNotices::add_times(const EngineReport& report) {
  sum_.backward_seconds += report.backward_seconds;
  sum_.seconds += report.seconds;
  sum_.exchange_seconds += report.exchange_seconds;
  sum_.comm_busy_seconds += report.comm_busy_seconds;
  sum_.bytes_sent += report.bytes_sent;
  sum_.steps = report.steps;
  if (++summed_ < times_every_) return;
  log(LogLevel::kInfo, time_line(sum_, summed_));
  sum_ = {};
  summed_ = 0;
}

}  // namespace thinwire::engine
