// SPDX-License-Identifier: Apache-2.0
#include "engine/step_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <variant>

#include "thinwire/core/log.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::engine {

using config::CommBackend;

namespace {

constexpr std::int64_t kDeepSpeedsStepsPerPrint = 10;
constexpr std::string_view kFreezeStep = "freeze_step";

std::string_view name_of(CommBackend backend) {
  constexpr std::string_view kNames[] = {"", "nccl", "hccl", "mpi", "gloo"};
  return kNames[static_cast<std::size_t>(backend)];
}

// Returns the steps in which the learning rate rises, if the configuration says
// so: by its schedule, or because the caller has one of its own.
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

std::string skipped_line(const EngineReport& report, std::int64_t skipped,
                         double loss_scale) {
  const std::string where =
      report.nonfinite_rank < 0
          ? ""
          : fmt::format(" on rank {}", report.nonfinite_rank);
  const std::string scales =
      report.loss_scale == 1 && loss_scale == 1
          ? ""
          : fmt::format("; the loss scale was {} and is {} now",
                        report.loss_scale, loss_scale);
  return fmt::format(
      "a step was skipped on all ranks after step {}, {} so far: a gradient "
      "was not finite{}{}",
      report.steps, skipped, where, scales);
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

StepNotices::StepNotices(const config::Config& config, int ranks)
    : ranks_(ranks),
      freeze_key_(std::visit(
          []<class Options>(const Options&) -> std::string_view {
            if constexpr (requires(Options o) { o.freeze; }) return kFreezeStep;
            if constexpr (requires(Options o) { o.var_freeze_step; })
              return "var_freeze_step";
            return "";
          },
          config.optimizer)),
      lr_warmup_steps_(lr_warmup_steps_of(config)),
      syncs_every_(config.outer.sync_every),
      backend_(config.comm.backend),
      times_every_(!config.wall_clock_breakdown ? 0
                   : config.steps_per_print > 0 ? config.steps_per_print
                                                : kDeepSpeedsStepsPerPrint),
      tells_memory_(config.memory_breakdown) {}

void StepNotices::at_start(const comm::Communicator& comm,
                           const optim::Optimizer& optimizer) const {
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

// A variance of the first steps, whose gradients are large, stays for the run.
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
  if (report.applied)
    tell_of_phase(report, progress.phase);
  else if (logs_phases_ &&
           std::has_single_bit(static_cast<std::uint64_t>(progress.skipped)))
    log(LogLevel::kInfo, skipped_line(report, progress.skipped, loss_scale));
  if (is_first_ && tells_memory_)
    log(LogLevel::kInfo, memory_line("after the first step", memory_use()));
  is_first_ = false;
  if (times_every_ > 0) add_times(report);
}

// A run that resumes in its compression stage has logged it before.
void StepNotices::tell_of_phase(const EngineReport& report, optim::Phase next) {
  if (!logs_phases_ || ranks_ == 1 || has_compressed_) return;
  if (report.phase == optim::Phase::kExact) {
    exact_bytes_ = report.bytes_sent;
    if (freeze_key_ == kFreezeStep && next != optim::Phase::kExact)
      log(LogLevel::kInfo,
          fmt::format("step {} was the last exact one: the variance is frozen",
                      report.steps));
    return;
  }
  has_compressed_ = true;
  if (exact_bytes_ > 0)
    log(LogLevel::kInfo,
        fmt::format("step {}: from now on ranks exchange {}; this one sent {}, "
                    "the last exact one {}",
                    report.steps, what_travels(report.phase),
                    megabytes(static_cast<double>(report.bytes_sent)),
                    megabytes(static_cast<double>(exact_bytes_))));
}

std::string StepNotices::what_travels(optim::Phase phase) const {
  if (syncs_every_ > 0)
    return fmt::format("what up to {} local steps have changed", syncs_every_);
  return phase == optim::Phase::kLocal
             ? "nothing in most steps, and one bit per element in some"
             : "momentum in one bit per element";
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
