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
#include "thinwire/engine/learning_rates.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/zero/sharded_optimizer.h"

namespace thinwire::engine {

/// Result of one step(): the optimizer's report, and measurements of the window
/// before it.
struct EngineReport : optim::StepReport {
  /// Whether the step is at a boundary. If not, the window of accumulation
  /// continues, and nothing was updated.
  bool at_boundary = true;
  std::int64_t steps = 0;    ///< Applied so far, including this one.
  double learning_rate = 0;  ///< Rate of group 0 in this step.
  /// Time of computing gradients since the window's first backward.
  double backward_seconds = 0;
  /// Number of elements whose average began only after backward, because a
  /// gradient was missing or late; 0 if no average could begin earlier.
  std::size_t late_elements = 0;
  /// Parameter that delayed them, if any.
  std::string waited_for{};
};

/// Returns whether the caller provides an array of gradients that is kept until
/// step(). Otherwise the caller passes each gradient to
/// Engine::gradient_ready() and may free it immediately. It passes gradients
/// with ZeRO stage 2, and with stage 1 if 16-bit gradients are accumulated in
/// fp32.
[[nodiscard]] bool keeps_gradients(const config::Config& config, int world);

/// Returns whether masters are sharded over the ranks, at least in exact steps:
/// with ZeRO and with lean 1-bit Adam.
[[nodiscard]] bool shards_masters(const config::Config& config) noexcept;

/// The parts that a Config requests, on flat arrays: loss scale, accumulation,
/// exchange during backward, optimizer, learning rates. It uses no framework;
/// torch::Engine wraps it for LibTorch.
///   Engine engine(comm, layout, config, params, grads);
///   for (each micro-batch) {
///     engine.begin_backward();
///     ... add gradients of loss * engine.loss_factor() to grads ...
///     ... engine.gradient_ready(k) as soon as parameter k's is final ...
///     engine.end_backward();
///     engine.step();
///   }
/// If the next step averages exactly, buckets of gradients are averaged during
/// backward as soon as they are complete, the last bucket first. All ranks
/// average the same buckets, regardless of the order in which gradients become
/// ready. A parameter without a gradient counts as zero.
///
/// Used by one thread. Errors other than kCommFailure change nothing, with
/// three exceptions. kNonFinite begins a new window. If a sync of an outer loop
/// throws it, local steps are not undone, and a checkpoint must be loaded. If
/// step() finds changed gradients or parameters, this rank gives up its
/// communicator.
class Engine {
 public:
  /// Sends rank 0's parameters to all ranks and sets gradients to 0.
  /// Collective. `params` and `grads` are flat arrays of layout.size() elements
  /// of config.precision.dtype. They and `comm` must outlive this object.
  /// `grads` is empty unless keeps_gradients(). With 16-bit parameters, the
  /// last ones may be fp32. Both arrays are then views made by View::joined().
  /// If `initial` is given, masters are copied from it. It has the fp32
  /// parameters before rounding. `rule` is as in make_optimizer(). With one,
  /// the rule's learning rates and the config's schedule apply. Throws
  /// Error(kInvalidArgument) like Config::validate, if the arrays overlap or
  /// are not aligned, and if checkpoints cannot have a parameter's name or
  /// shape. Throws it on all ranks if ranks pass different arguments.
  Engine(comm::Communicator& comm, const ParameterLayout& layout,
         const config::Config& config, View params, View grads,
         ConstView initial = {}, optim::MakeRule rule = {});
  /// Waits for exchanges that a backward began and no step() used, at most as
  /// long as a collective may take. Afterwards the caller may reuse the memory.
  ~Engine();
  /// Takes over the other engine's state. The other engine may then only be
  /// destroyed.
  Engine(Engine&&) noexcept;

  [[nodiscard]] const config::Config& config() const noexcept;
  /// Returns the optimizer, for inspection.
  [[nodiscard]] const optim::Optimizer& optimizer() const noexcept;
  /// Returns the communicator of the constructor, for exchanges between two
  /// windows, which all ranks must make.
  [[nodiscard]] comm::Communicator& communicator() const noexcept;

  [[nodiscard]] LearningRates& learning_rates() noexcept;
  /// Returns the masters. If there are none, or if shards_masters(), returns
  /// the parameters.
  [[nodiscard]] ConstView masters() const noexcept;
  [[nodiscard]] double loss_scale() const noexcept;
  /// Sets the loss scale; a dynamic scale continues from it. Collective, at the
  /// beginning of a window. Throws Error(kInvalidArgument) on all ranks unless
  /// all pass the same value, in [2^-126, 2^127] and within the limits of a
  /// dynamic scale. Throws Error(kFailedPrecondition) inside a window, or if
  /// parameters are not fp16.
  void set_loss_scale(double scale);
  /// Returns the factor by which the caller multiplies the loss, in fp32. It is
  /// the loss scale divided by gradient_accumulation_steps, regardless of the
  /// number of backwards in a window.
  [[nodiscard]] double loss_factor() const noexcept;

  /// Makes the ranks of `comm` clip by one norm and skip steps together from
  /// the next step on. Each of them holds a different part of the model (tensor
  /// or pipeline parallelism). Each averages with a different group of ranks.
  /// `comm` must outlive this object. A parameter that several of them hold
  /// counts once for each, unless all except one list its index in `uncounted`.
  /// Throws Error(kInvalidArgument) with deepspeed semantics, with
  /// lean_onebit_adam, and unless the indices ascend and are the layout's.
  void set_model_parallel(comm::Communicator& comm,
                          std::span<const std::size_t> uncounted = {});

  // ---- one backward; local except for queued exchanges
  /// Begins a backward. Throws Error(kFailedPrecondition) inside another
  /// backward, in an evaluation, and after the window's last one, until step().
  void begin_backward();
  /// Declares that the gradient of parameter `index` is complete for this
  /// backward. Call it at most once per parameter and backward. With
  /// keeps_gradients(), the gradient is already in `grads`, and this call is
  /// optional. Otherwise the call copies `gradient`. The gradient of a
  /// parameter for which it is not called counts as zero.
  void gradient_ready(std::size_t index, ConstView gradient = {});
  /// Ends the backward. With keeps_gradients(), waits for the buckets in
  /// flight. Until step() gradients and parameters may be read, but not
  /// changed.
  void end_backward();
  /// Discards the gradients of a backward that failed because of `reason`, and
  /// restarts the window. If some have already been sent, this rank gives up
  /// with that reason and throws Error(kCommFailure).
  void cancel_backward(std::string_view reason = "its backward has failed");
  /// Returns whether step() would take effect now, after the most recent
  /// backward. Before a window's first backward, returns this for that
  /// backward.
  [[nodiscard]] bool is_boundary() const noexcept;
  /// Sets the result of is_boundary() until the next call. With std::nullopt,
  /// gradient_accumulation_steps decides. Call it before begin_backward().
  void set_accumulation_boundary(std::optional<bool> boundary);

  /// Runs a step. Collective at boundaries, otherwise local. Throws
  /// Error(kFailedPrecondition) without a backward since the last step. It also
  /// throws this if gradients or parameters have changed since that backward.
  /// It checks one element of each parameter. The other ranks then get
  /// Error(kCommFailure) "rank R gave up: ...". Throws Error(kNonFinite) like
  /// MixedPrecision and OuterLoop. If `final_range` is given, step() calls it
  /// like StepInput::final_range, as soon as some parameters are final.
  EngineReport step(const optim::FinalRange& final_range = {});

  /// Returns the mean of the ranks' values, such as losses, added in the order
  /// of ranks; NaN if any value is NaN. Collective. Throws
  /// Error(kFailedPrecondition) on all ranks if they have made different
  /// numbers of steps.
  [[nodiscard]] double mean(double value);

  // ---- values
  /// Returns access to whole values of any owner. Setting a parameter discards
  /// the local steps of 0/1 Adam or of an outer loop since the last exchange.
  /// Reading and setting gradients, and setting states, require ZeRO. Without
  /// ZeRO, state() reads arrays of which every rank has all elements. It throws
  /// Error(kInvalidArgument) for a key that the optimizer's present stage does
  /// not have.
  [[nodiscard]] zero::WholeValues& whole_values() noexcept;
  /// Copies the parameters into the masters, if any. The caller must have set
  /// them to the same values on all ranks. Local, at the beginning of a window.
  /// Throws Error(kFailedPrecondition) inside a window and in an evaluation.
  /// With `only_written`, works like engine::read_written(), which keeps
  /// masters of parameters that were not written.
  void read_masters(bool only_written = false);
  /// Returns the sharded optimizer, which reads and sets whole values. Throws
  /// Error(kFailedPrecondition) without ZeRO.
  [[nodiscard]] zero::ShardedOptimizer& zero();

  /// Make parameters equal on all ranks between the two calls, during which
  /// there is no backward or step. Collective.
  void begin_evaluation();
  void end_evaluation();

  /// Return and set the state, with ZeRO this rank's shard. Call them at the
  /// beginning of a window; loading is collective with ZeRO and lean 1-bit
  /// Adam. Throw Error(kFailedPrecondition) inside a window.
  [[nodiscard]] StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  // ---- checkpoints; collective. Throw Error(kFailedPrecondition) inside a
  // window of accumulation and in an evaluation Writes ROOT/step-<steps
  // applied>, completely or not at all; see checkpoint::save(). The next save
  // and the destructor wait for this engine's asynchronous save.
  checkpoint::SaveReport save(const std::string& root,
                              const checkpoint::Extra& extra = {},
                              const checkpoint::SaveOptions& options = {});
  /// Resumes from a checkpoint, or from the newest one in a directory of them;
  /// see checkpoint::load(). If the same number of ranks saved it, the run
  /// continues with the same bits. This engine's configuration applies; the
  /// report has a note for each difference from the saved configuration.
  /// Learning rates set by hand are part of the checkpoint.
  checkpoint::LoadReport load(const std::string& path,
                              const checkpoint::LoadOptions& options = {});
  /// Loads like load(), or returns nothing if there is no checkpoint yet; see
  /// checkpoint::resume().
  std::optional<checkpoint::LoadReport> resume(
      const std::string& path, const checkpoint::LoadOptions& options = {});
  /// Returns the saver of save(): its pending asynchronous save, its memory and
  /// the retention of checkpoints.
  [[nodiscard]] checkpoint::Saver& saver() noexcept;

  /// Sets whether step() logs events of the run, such as its first compressed
  /// step and skipped steps (core/log.h). It does by default. A front end that
  /// keeps these notices in checkpoints passes false.
  void log_phases(bool is_logged) noexcept;

  /// Tensors that are not parameters. Saves write them, and loads fill them.
  struct Others {
    std::vector<checkpoint::OtherTensor> tensors{};
    std::vector<std::pair<std::string, std::string>> aliases{};
  };
  /// Sets the function that returns them at every save and load; local. If
  /// empty, there are none.
  void set_others(std::function<Others()> others);

  struct Impl;

 private:
  friend class EngineClock;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::engine
