// SPDX-License-Identifier: Apache-2.0
// What an engine writes of its steps, and says of them.
#include "engine/engine_impl.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"

namespace thinwire::engine {

void Engine::Impl::watch_the_freeze() {
  if (config.fallback == config::Fallback::kOff) return;
  optimizer().set_freeze_gate([this](const optim::FreezeRequest& request) {
    const comm::Counters before = comm.counters();
    const bool ends = fallback.ends_exact_stage(comm, request);
    leave_out(comm.counters(), before);
    return ends;
  });
}

// A run that was interrupted has the same traffic as one that was not, however
// many steps either has measured.
void Engine::Impl::leave_out(const comm::Counters& now,
                             const comm::Counters& before) {
  counters.bytes_sent += now.bytes_sent - before.bytes_sent;
  counters.collectives += now.collectives - before.collectives;
  counters.messages += now.messages - before.messages;
  counters.bytes_between_hosts +=
      now.bytes_between_hosts - before.bytes_between_hosts;
  counters.busy_seconds += now.busy_seconds - before.busy_seconds;
}

void Engine::Impl::watch_anew() {
  fallback.forget();
  step_ended.reset();
}

void Engine::Impl::watch(const EngineReport& done) {
  const auto now = std::chrono::steady_clock::now();
  if (done.applied && step_ended) {
    const std::chrono::duration<double> whole = now - *step_ended;
    const auto verdict = fallback.add(
        done.phase, {.whole = whole.count(), .step = done.seconds});
    if (verdict && !verdict->pays() && comm.rank() == 0)
      log(LogLevel::kWarning, FallbackWatch::text_after(*verdict));
  }
  step_ended = now;
  if (!telemetry.wants_line(done.steps)) return;
  TelemetryExtra extra{.memory = memory_use()};
  if (telemetry.wants_residual_ratio(done.steps)) {
    const double ratio = optimizer().residual_ratio();
    if (ratio > 0) extra.residual_ratio = ratio;
  }
  telemetry.write(done, extra);
}

}  // namespace thinwire::engine
