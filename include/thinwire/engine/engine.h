// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/zero/sharded_optimizer.h"

namespace thinwire::engine {

/// What one step() did: the optimizer's report, and what led to it.
struct EngineReport : optim::StepReport {
  /// False: the window of accumulation goes on, and nothing was updated.
  bool at_boundary = true;
  std::int64_t steps = 0;    ///< Applied so far, this one included.
  double learning_rate = 0;  ///< Of group 0, in this step.
  /// Since the first backward of the window: computing gradients.
  double backward_seconds = 0;
  /// Elements whose average began only after backward had ended, because a
  /// gradient was missing or came late; 0 where nothing could begin early.
  std::size_t late_elements = 0;
  /// The parameter that held them up; empty: none, or the first one's bucket.
  std::string waited_for{};
};

/// Whether gradients have an array of their own until step(). Otherwise each is
/// handed to Engine::gradient_ready(), and may go at once: ZeRO stage 2, and
/// stage 1 where 16-bit gradients are added up in fp32.
[[nodiscard]] bool keeps_gradients(const config::Config& config, int world);

/// Whether masters are sharded over the ranks, at least in exact steps: with
/// ZeRO and with lean 1-bit Adam.
[[nodiscard]] bool shards_masters(const config::Config& config) noexcept;

/// All that a Config asks for, put together around flat memory: loss scale,
/// accumulation, exchange during backward, optimizer, learning rates. Knows no
/// framework; torch::Engine is this for LibTorch.
///
///   Engine engine(comm, layout, config, params, grads);
///   for (each micro-batch) {
///     engine.begin_backward();
///     ... add gradients of loss * engine.loss_factor() to grads ...
///     ... engine.gradient_ready(k) as soon as parameter k's is final ...
///     engine.end_backward();
///     engine.step();
///   }
///
/// Where the next step averages exactly, buckets of gradients are averaged as
/// soon as they are complete, last ones first, while backward goes on; the same
/// ones on all ranks, whatever the order in which gradients come. A parameter
/// without a gradient counts as zero.
///
/// Used by one thread. Errors other than kCommFailure change nothing, except
/// that kNonFinite begins a new window.
class Engine {
 public:
  /// Collective: rank 0's parameters go to all ranks. `params` and `grads` are
  /// flat arrays of layout.size() elements of config.precision.dtype, which
  /// must outlive this object, as must `comm`; unless keeps_gradients() `grads`
  /// is empty. Beside 16 bits the last parameters may be fp32: both arrays are
  /// a View::joined() then. Masters are made of `initial`,
  /// fp32 parameters before they were rounded, where it is given. Gradients
  /// become 0. `rule`: as make_optimizer(); of the config's Adam learning rates
  /// and their schedule then count. Throws Error(kInvalidArgument),
  /// Error(kUnavailable) as Config::validate, and on all ranks if ranks pass
  /// different arguments.
  Engine(comm::Communicator& comm, const ParameterLayout& layout,
         const config::Config& config, View params, View grads,
         ConstView initial = {}, optim::MakeRule rule = {});
  /// Waits for what backward has sent without a step(), at most as long as a
  /// collective may take; then the memory is the caller's again.
  ~Engine();
  Engine(Engine&&) noexcept;

  [[nodiscard]] const config::Config& config() const noexcept;
  /// To look at.
  [[nodiscard]] const optim::Optimizer& optimizer() const noexcept;
  /// That of construction. For exchanges between two windows; all ranks must
  /// make the same.
  [[nodiscard]] comm::Communicator& communicator() const noexcept;

  // ---- learning rates; local, so all ranks must do the same
  /// From the next step on this group, or every group, has this rate, whatever
  /// the schedule says, until another one is set. Part of the state. Throws
  /// Error(kInvalidArgument) unless finite and >= 0, and for a group that does
  /// not exist.
  void set_learning_rate(std::size_t group, double learning_rate);
  void set_learning_rate(double learning_rate);
  /// Instead of the configuration's schedule; takes back what was set by hand.
  /// Empty: the configuration's again. No part of the state: to be set again
  /// before a run goes on. step() throws Error(kInvalidArgument), and changes
  /// nothing, where it gives what is no rate.
  void set_schedule(config::LearningRateFunction schedule);
  /// The parameters that are updated: masters, or params themselves; also where
  /// shards_masters().
  [[nodiscard]] ConstView masters() const noexcept;
  [[nodiscard]] double loss_scale() const noexcept;
  /// Collective, at the beginning of a window. A dynamic scale continues from
  /// it. Throws Error(kInvalidArgument) on all ranks unless all give the same
  /// value, which is finite, > 0 and within the limits of a dynamic scale, and
  /// Error(kFailedPrecondition) inside a window and unless parameters are fp16.
  void set_loss_scale(double scale);
  /// What the loss is to be multiplied by, in fp32: the loss scale over
  /// gradient_accumulation_steps, however many backwards a window has.
  [[nodiscard]] double loss_factor() const noexcept;

  /// From the next step on the ranks of `comm`, which must outlive this object,
  /// are clipped by one norm and skip a step together: each of them holds
  /// another part of the model (tensor or pipeline parallelism), and is in
  /// another group of those that average. A parameter that several of them hold
  /// counts on each. Throws Error(kInvalidArgument) with deepspeed semantics
  /// and with lean_onebit_adam.
  void set_model_parallel(comm::Communicator& comm);

  // ---- one backward; local except for what is queued
  /// Throws Error(kFailedPrecondition) inside another backward, in an
  /// evaluation, and after the window's last one, until step().
  void begin_backward();
  /// The gradient of parameter `index` is complete for this backward. At most
  /// once per parameter and backward. With keeps_gradients() it is in its
  /// place, and this call is optional; otherwise it is `gradient`, which is
  /// copied, and a parameter without one counts as zero.
  void gradient_ready(std::size_t index, ConstView gradient = {});
  /// Waits for the buckets that have left: until step() gradients and
  /// parameters may be read, but not changed.
  void end_backward();
  /// Backward has failed, and `reason` says why: its gradients are worth
  /// nothing, and the window begins anew. Where some have left already, the
  /// other ranks are told that this rank gives up, and why, and
  /// Error(kCommFailure) is thrown.
  void cancel_backward(std::string_view reason = "its backward has failed");
  /// The next step() takes effect after this backward, or did after the last.
  [[nodiscard]] bool is_boundary() const noexcept;
  /// true or false: what is_boundary() says until this is called again;
  /// nothing: gradient_accumulation_steps decides. Before begin_backward().
  void set_accumulation_boundary(std::optional<bool> boundary);

  /// Collective at boundaries, else local. Throws Error(kFailedPrecondition)
  /// without a backward since the last one, and where gradients or parameters
  /// were changed after it, which it sees at one element of each parameter; the
  /// other ranks then get Error(kCommFailure) "rank R gave up: ...".
  /// Error(kNonFinite) as MixedPrecision.
  EngineReport step();

  /// Collective: the mean of the ranks' values, a loss or an accuracy, added in
  /// the order of ranks; NaN if one of them is. Throws
  /// Error(kFailedPrecondition) on all ranks where they have made different
  /// numbers of steps.
  [[nodiscard]] double mean(double value);

  // ---- whole values, whoever owns them; collective, fp32
  /// Of the masters.
  [[nodiscard]] std::vector<float> full_parameter(std::string_view name);
  /// Sets masters and parameters; all ranks give the same values. 0/1 Adam
  /// forgets its updates since the last exchange.
  void set_full_parameter(std::string_view name, std::span<const float> values);
  /// The averaged gradient, without the loss scale and not clipped, between a
  /// window's last backward and step(), which no backward may then precede.
  /// Only with ZeRO.
  [[nodiscard]] std::vector<float> full_gradient(std::string_view name);
  /// The part of the state array `key` ("exp_avg", "exp_avg_sq") that belongs
  /// to this parameter. Throws Error(kInvalidArgument) for a key that the
  /// optimizer's present stage does not have.
  [[nodiscard]] std::vector<float> full_state(std::string_view name,
                                              std::string_view key);
  /// Local, at the beginning of a window: parameters were set by the caller, to
  /// the same values on all ranks; masters, where there are some, become these.
  /// Error(kFailedPrecondition) inside of a window and in an evaluation.
  void read_masters();
  /// Setters, and what moves states. Error(kFailedPrecondition) without ZeRO.
  [[nodiscard]] zero::ShardedOptimizer& zero();

  /// Collective: between the two calls parameters are equal on all ranks, and
  /// there is no backward or step.
  void begin_evaluation();
  void end_evaluation();

  /// At the beginning of a window; Error(kFailedPrecondition) inside of one.
  /// With ZeRO this rank's shard, and loading is collective.
  [[nodiscard]] StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  // ---- checkpoints; collective. Error(kFailedPrecondition) inside a window of
  // accumulation and in an evaluation
  /// Writes ROOT/step-<steps applied>, all of it or nothing; see
  /// checkpoint::save(). Asynchronous saves are this engine's: the next one and
  /// the destructor wait for the one before.
  checkpoint::SaveReport save(const std::string& root,
                              const checkpoint::Extra& extra = {},
                              const checkpoint::SaveOptions& options = {});
  /// Goes on from a checkpoint, or from the newest one in a directory of them;
  /// see checkpoint::load(). Saved by as many ranks, the run goes on with the
  /// same bits. This engine's configuration holds: where it differs from the
  /// saved one, the report has a note. Learning rates set by hand are part of
  /// the checkpoint.
  checkpoint::LoadReport load(const std::string& path,
                              const checkpoint::LoadOptions& options = {});
  /// As load(), or nothing where there is no complete checkpoint yet.
  std::optional<checkpoint::LoadReport> resume(
      const std::string& path, const checkpoint::LoadOptions& options = {});
  /// Until the asynchronous save under way is done; throws why it failed.
  void wait_for_save();
  [[nodiscard]] bool is_saving() const;
  /// The memory of asynchronous saves, which is kept for the next one.
  void release_save_buffers();
  /// Removes checkpoints of this run from ROOT that `which` does not keep.
  void retain(const std::string& root, const checkpoint::Retention& which);

  /// Whether step() logs the freeze, the first compressed step and skipped
  /// steps (core/log.h); true at first. For a front end that tells of them
  /// itself.
  void log_phases(bool is_logged) noexcept;

  /// Tensors beside the parameters, which saves write and loads fill.
  struct Others {
    std::vector<checkpoint::OtherTensor> tensors{};
    std::vector<std::pair<std::string, std::string>> aliases{};
  };
  /// Asked for at every save and load; local. Empty: there are none.
  void set_others(std::function<Others()> others);

  struct Impl;

 private:
  friend class EngineClock;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::engine
