// SPDX-License-Identifier: Apache-2.0
// Telemetry of an engine's steps, and its messages about them.
#include <utility>

#include "engine/engine_impl.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"

namespace thinwire::engine {

void Engine::Impl::watch_the_freeze() {
  if (config.fallback == config::Fallback::kOff) return;
  optim::FreezeStage* const freeze = optimizer().freeze();
  if (freeze == nullptr) return;
  freeze->set_gate([this](const optim::FreezeRequest& request) {
    const comm::Counters before = comm.counters();
    const bool ends = fallback.ends_exact_stage(comm, request);
    // Measurements do not count as traffic, so that an interrupted run reports
    // the same traffic as an uninterrupted one.
    counters += comm.counters() - before;
    return ends;
  });
}

void Engine::Impl::watch_anew() {
  fallback.forget();
  step_ended.reset();
  notices.loaded(optimizer());
}

void EngineClock::set(Engine& engine, Now now) {
  engine.impl_->now = std::move(now);
}

void Engine::Impl::watch(const EngineReport& done, double waited_in_backward) {
  const auto ended = now();
  if (done.applied && step_ended) {
    using Seconds = std::chrono::duration<double>;
    const auto verdict = fallback.add(
        done.phase,
        {.whole = Seconds(ended - *step_ended).count(),
         .step = Seconds(ended - step_began).count() + waited_in_backward});
    if (verdict && !verdict->pays() && comm.rank() == 0)
      log(LogLevel::kWarning, FallbackWatch::text_after(*verdict));
  }
  step_ended = ended;
  notices.after_step(done, optimizer(), loss_scale());
  if (!telemetry.wants_line(done.steps)) return;
  TelemetryExtra extra{.memory = memory_use(),
                       .lamb_coeffs = optimizer().progress().lamb_coeffs};
  if (telemetry.wants_residual_ratio(done.steps)) {
    const double ratio = optimizer().residual_ratio();
    if (ratio > 0) extra.residual_ratio = ratio;
  }
  telemetry.write(done, extra);
}

}  // namespace thinwire::engine
