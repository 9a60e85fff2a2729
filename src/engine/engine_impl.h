// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/host_name.h"
#include "core/require.h"
#include "engine/engine_rates.h"
#include "engine/fallback.h"
#include "engine/gradient_marks.h"
#include "engine/hierarchy.h"
#include "engine/model_parallel.h"
#include "engine/step_notices.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
#include "thinwire/engine/make_optimizer.h"
#include "thinwire/engine/telemetry.h"
#include "thinwire/exchange/gradient_window.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine {

/// Replaces the clock that judges whether compressed steps are faster. In each
/// step at a boundary it is read before and after the optimizer's step. For
/// tests.
class EngineClock {
 public:
  using Now = std::function<std::chrono::steady_clock::time_point()>;
  /// Sets the clock. Call it before the first step.
  static void set(Engine& engine, Now now);
};

/// Throws because the call requires ZeRO.
[[noreturn]] void refuse_without_zero(std::string_view caller);

/// Reads and sets the values that the engine's optimizer has.
class EngineValues final : public zero::WholeValues {
 public:
  explicit EngineValues(Engine::Impl& engine);

 private:
  void require_gradients(std::string_view caller, View grads) const override;
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what,
                                        View grads) override;
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values) override;

  Engine::Impl& engine_;
};

/// Receives the gradients of the window if there is an array of all gradients.
/// The framework leaves them in it, and buckets are sent as soon as they are
/// complete. Without such an array ZeRO receives them and has the window.
struct Engine::Impl final : exchange::GradientSink {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const config::Config& settings, View p, View g, optim::MakeRule r)
      : given(c),
        grouped(by_host(c, settings)),
        comm(grouped == nullptr ? c : *grouped),
        layout(l),
        config(settings),
        params(p),
        grads(g),
        own_rule(std::move(r)),
        accumulation_steps(settings.batch(c.size()).accumulation_steps),
        has_gradient_array(keeps_gradients(settings, c.size())),
        rates(settings.schedule),
        marks(layout),
        telemetry(settings.telemetry, c.rank()),
        host_names(comm::gather_texts(c, comm::host_name())),
        fallback(settings.fallback),
        notices(settings, c.rank(), c.size()),
        saver(comm) {}

  // ---- life of the engine: engine.cpp
  /// Makes the optimizer and the window, and sends rank 0's parameters to all
  /// ranks. Collective.
  void start(ConstView initial);
  void set_parameter(const Parameter& p, std::span<const float> values);
  [[nodiscard]] optim::Optimizer& optimizer() const { return *made.optimizer; }
  [[nodiscard]] double loss_scale() const {
    if (made.zero != nullptr) return made.zero->loss_scale();
    return made.mixed == nullptr ? 1 : made.mixed->loss_scale();
  }
  /// Returns whether the latest backward is the last one of its window. Before
  /// a window, returns whether the first backward will be the last.
  [[nodiscard]] bool is_boundary() const {
    if (window->is_complete()) return true;
    if (boundary) return *boundary;
    return !is_managed() ||
           (window->backwards() == 0 && accumulation_steps == 1);
  }

  // ---- one window: engine_window.cpp
  void begin_backward();
  void cancel_backward(std::string_view reason);
  void gradient_ready(std::size_t index, ConstView gradient);
  void end_backward();
  [[nodiscard]] EngineReport step(const optim::FinalRange& final_range);
  [[nodiscard]] View window_gradients() {
    return accumulates_in_fp32 ? sums.view() : grads;
  }
  [[nodiscard]] ConstView own_gradients() const {
    return has_gradient_array ? ConstView(grads) : ConstView();
  }
  /// Runs `body`, which exchanges with other ranks. If a rank makes fewer or
  /// different calls, the error suggests that it had fewer batches, which is
  /// the usual cause.
  template <class F>
  auto exchange(F&& body) {
    try {
      return body();
    } catch (const Error& error) {
      explain(error);
      throw;
    }
  }

  // ---- telemetry and notices: engine_watch.cpp
  /// Forgets the times of steps, because the next steps belong to another run.
  void watch_anew();

  // ---- checkpoints: engine_checkpoint.cpp
  [[nodiscard]] checkpoint::Training training();
  void require_between_windows(const char* what) const;
  /// Waits for a pending save, and returns the training to load into.
  /// Collective.
  [[nodiscard]] checkpoint::Training training_to_load();
  /// Values that a load will set.
  struct Continuation {
    std::int64_t steps = 0;
    std::vector<std::optional<double>> by_hand{};
    std::vector<std::string> changed{};  // settings
  };
  /// Returns options that fill in `next` before anything changes.
  [[nodiscard]] checkpoint::LoadOptions checked(
      const checkpoint::LoadOptions& options, Continuation& next) const;
  /// Sets the values of the loaded checkpoint.
  void restore(checkpoint::LoadReport& loaded, checkpoint::What what,
               Continuation&& next);

  comm::Communicator& given;                          // at construction
  const std::unique_ptr<comm::Communicator> grouped;  // null: flat
  comm::Communicator& comm;
  const ParameterLayout layout;
  const config::Config config;
  const View params;
  const View grads;
  const optim::MakeRule own_rule;  // empty: the configuration's
  const std::int64_t accumulation_steps;
  const bool has_gradient_array;  // without it, they are passed one by one
  EngineRates rates;
  std::int64_t steps = 0;

  std::optional<bool> boundary;  // if the caller sets it
  bool in_evaluation = false;

  // ---- since the last step
  // The window of all calls: `own_window` with an array of all gradients,
  // otherwise ZeRO's. It is made with the optimizer, and has the same buckets.
  exchange::GradientWindow* window = nullptr;
  std::optional<exchange::GradientWindow> own_window;
  double waited = 0;    // seconds in backward, waiting for sent buckets
  GradientMarks marks;  // of values that must not change until step()
  Buffer sums;          // fp32 sums of 16-bit gradients, allocated on first use
  bool accumulates_in_fp32 = false;
  ModelParallel model_parallel;
  Buffer travelling;  // gradients in the dtype of the wire, if it differs
  EngineReport report;
  comm::Counters counters;  // at the begin of the window
  std::chrono::steady_clock::time_point backward_began;

  // ---- telemetry and notices
  Telemetry telemetry;
  const std::vector<std::string> host_names;  // of every rank, for error
                                              // messages
  FallbackWatch fallback;
  StepNotices notices;
  // End of this run's last step, if there was one.
  std::optional<std::chrono::steady_clock::time_point> step_ended;
  std::chrono::steady_clock::time_point step_began;  // of the present step
  EngineClock::Now now = [] { return std::chrono::steady_clock::now(); };

  std::function<Others()> others;     // empty: there are none
  std::optional<EngineValues> whole;  // made with the window
  // Destroyed before the memory above, which its pending exchanges use.
  OptimizerStack made;
  checkpoint::Saver saver;  // its destructor waits for a pending save

 private:
  void make_optimizer(ConstView initial);
  void broadcast(View values);
  [[nodiscard]] std::vector<optim::HeldParameters> held_parameters() const;
  void make_window();
  [[nodiscard]] bool is_managed() const {
    return config.managed_gradient_accumulation;
  }

  // ---- gradients in flight, unless ZeRO has the window (make_window)
  bool begin(exchange::Backward which) override;
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket) override;
  [[nodiscard]] DType wire_dtype() const {
    return config.communication_dtype.value_or(config.precision.dtype);
  }
  [[nodiscard]] bool is_converted();
  [[nodiscard]] View to_send(Range range);
  [[nodiscard]] View all_travelling();
  void finish_sent();
  void begin_window();
  void require_untouched();
  void require_all_used() const;
  void explain(const Error& error) const;

  void watch_the_freeze();
  /// Reports a step. `waited_in_backward` counts as part of it.
  void watch(const EngineReport& done, double waited_in_backward);
  /// Returns the values of a checkpoint. Throws Error(kCorruptCheckpoint) if
  /// they are invalid.
  [[nodiscard]] Continuation continuation(
      const checkpoint::LoadReport& found) const;
};

}  // namespace thinwire::engine
