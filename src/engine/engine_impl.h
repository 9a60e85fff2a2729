// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/host_name.h"
#include "core/require.h"
#include "engine/engine_clock.h"
#include "engine/fallback.h"
#include "engine/gradient_marks.h"
#include "engine/hierarchy.h"
#include "engine/learning_rates.h"
#include "engine/step_notices.h"
#include "exchange/gradient_window.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
#include "thinwire/engine/make_optimizer.h"
#include "thinwire/engine/telemetry.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::engine {

/// Where gradients go: the framework leaves them in the array of all gradients,
/// whose buckets are sent as they fill; without such an array they are handed
/// on to ZeRO.
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
        notices(settings, c.size()),
        saver(comm) {}

  comm::Communicator& given;                          // at construction
  const std::unique_ptr<comm::Communicator> grouped;  // null: flat
  comm::Communicator& comm;
  const ParameterLayout layout;
  const config::Config config;
  const View params;
  const View grads;
  const optim::MakeRule own_rule;  // empty: the configuration's
  const std::int64_t accumulation_steps;
  const bool has_gradient_array;  // else they are handed over one by one
  LearningRates rates;
  std::int64_t steps = 0;

  std::optional<bool> boundary;  // set by the caller
  bool in_evaluation = false;

  // ---- since the last step
  // Made with the optimizer, whose buckets it has.
  std::optional<exchange::GradientWindow> window;
  double waited = 0;    // seconds, for what has been sent, in backward
  GradientMarks marks;  // of what is the caller's to leave alone until step()
  Buffer sums;          // fp32, of 16-bit gradients; made when needed
  bool accumulates_in_fp32 = false;
  comm::Communicator* model_parallel = nullptr;  // null: there is none
  Buffer travelling;  // gradients in the dtype of the wire, where that is
                      // another one
  EngineReport report;
  comm::Counters counters;  // at the window's first backward
  std::chrono::steady_clock::time_point backward_began;

  // ---- what is written and said of steps: engine_watch.cpp
  Telemetry telemetry;
  const std::vector<std::string> host_names;  // of every rank, for errors
  FallbackWatch fallback;
  StepNotices notices;
  // Of the last step; nothing: it was another run's, or there was none.
  std::optional<std::chrono::steady_clock::time_point> step_ended;
  std::chrono::steady_clock::time_point step_began;  // of this one
  EngineClock::Now now = [] { return std::chrono::steady_clock::now(); };
  void watch_the_freeze();
  /// The seconds count as the step's.
  void watch(const EngineReport& done, double waited_in_backward);
  /// What follows are another run's steps.
  void watch_anew();

  // ---- checkpoints: engine_checkpoint.cpp
  std::function<Others()> others;  // empty: there are none
  [[nodiscard]] checkpoint::Training training();
  void require_between_windows(const char* what) const;
  /// Collective: what is loaded into, once nothing is under way.
  [[nodiscard]] checkpoint::Training training_to_load();
  /// What a load will set here.
  struct Continuation {
    std::int64_t steps = 0;
    std::vector<std::optional<double>> by_hand{};
    std::vector<std::string> changed{};  // settings
  };
  /// Throws Error(kCorruptCheckpoint).
  [[nodiscard]] Continuation continuation(
      const checkpoint::LoadReport& found) const;
  /// Options that fill in `next` before anything changes.
  [[nodiscard]] checkpoint::LoadOptions checked(
      const checkpoint::LoadOptions& options, Continuation& next) const;
  void take_up(checkpoint::LoadReport& loaded, checkpoint::What what,
               Continuation&& next);

  // Goes first, and waits for what it has under way in the memory above.
  OptimizerStack made;
  checkpoint::Saver saver;  // waits for a save under way

  /// Collective.
  void make_optimizer(ConstView initial);
  void broadcast(View values);
  [[nodiscard]] std::vector<optim::HeldParameters> held_parameters() const;
  void make_window();
  void set_full_parameter(std::string_view name, std::span<const float> values);
  [[nodiscard]] optim::Optimizer& optimizer() const { return *made.optimizer; }
  [[nodiscard]] double loss_scale() const {
    if (made.zero != nullptr) return made.zero->loss_scale();
    return made.mixed == nullptr ? 1 : made.mixed->loss_scale();
  }
  [[nodiscard]] bool is_managed() const {
    return config.managed_gradient_accumulation;
  }
  // Before a window: of its first backward.
  [[nodiscard]] bool is_boundary() const {
    if (window->is_complete()) return true;
    if (boundary) return *boundary;
    return !is_managed() ||
           (window->backwards() == 0 && accumulation_steps == 1);
  }

  // ---- gradients on their way
  [[nodiscard]] View window_gradients() {
    return accumulates_in_fp32 ? sums.view() : grads;
  }
  [[nodiscard]] DType wire_dtype() const {
    return config.communication_dtype.value_or(config.precision.dtype);
  }
  // Values of 16 bits are added in fp32 and rounded once, whatever the wire;
  // some optimizers take no others.
  [[nodiscard]] bool is_converted() {
    const DType dtype = window_gradients().dtype();
    if (wire_dtype() == dtype || dtype != DType::kFloat32) return false;
    if (made.zero != nullptr) return false;  // converts bucket by bucket
    const bool travels =
        comm.size() > 1 && optimizer().progress().phase == optim::Phase::kExact;
    return travels ||
           (made.mixed != nullptr && !made.mixed->takes_gradients(dtype));
  }
  [[nodiscard]] View to_send(Range range) {
    if (!is_converted()) return window_gradients();
    const MemoryScope scope(MemoryKind::kBuckets);
    if (travelling.empty())
      travelling = Buffer(params.first_size(), wire_dtype());
    if (range.offset < travelling.size()) {
      const std::size_t size =
          std::min(range.size, travelling.size() - range.offset);
      kernels::convert(window_gradients().subview(range.offset, size),
                       travelling.view().subview(range.offset, size));
    }
    return all_travelling();
  }
  // Gradients of parameters that are fp32 beside 16 bits stay what they are.
  [[nodiscard]] View all_travelling() {
    const std::size_t first = travelling.size();
    return View::joined(travelling.view(), window_gradients().subview(
                                               first, layout.size() - first));
  }
  void store(const exchange::GradientPart& part) override;
  bool send(std::size_t bucket) override;

  // Runs what exchanges with other ranks. One that makes fewer calls, or
  // others, has most often had fewer batches: the error says so.
  template <class F>
  auto exchange(F&& body) {
    try {
      return body();
    } catch (const Error& error) {
      explain(error);
      throw;
    }
  }
  void explain(const Error& error) const;

  void begin_backward();
  void cancel_backward(std::string_view reason);
  void gradient_ready(std::size_t index, ConstView gradient);
  void end_backward();
  void finish_sent();
  void require_untouched();
  [[nodiscard]] ConstView own_gradients() const {
    return has_gradient_array ? ConstView(grads) : ConstView();
  }
  void require_all_used() const;
  void begin_window();
  [[nodiscard]] double norm_of_all_parts(double own);
  [[nodiscard]] EngineReport step(const optim::FinalRange& final_range);
  [[nodiscard]] double mean(double value);
};

}  // namespace thinwire::engine
