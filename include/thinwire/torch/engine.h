// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
#include "thinwire/torch/engine_parts.h"
#include "thinwire/torch/host_checkpoint.h"
#include "thinwire/torch/module_buffers.h"
#include "thinwire/torch/module_memory.h"
#include "thinwire/torch/module_others.h"
#include "thinwire/torch/staged_gradients.h"

namespace thinwire::torch {

/// Settings of a module that no configuration file has.
struct EngineOptions {
  GroupOf group_of{};  ///< If empty, all parameters are in group 0.
  std::optional<config::Buffers> buffers{};  ///< Unset: the configuration's.
};

/// An engine::Engine for a LibTorch module. It averages gradients while
/// backward() still computes others.
///   torch::Engine engine(*model, *comm, config::Config::from_file(path));
///   ...
///   engine.backward(model->forward(batch));
///   const auto report = engine.step();
/// The module's trainable parameters become views of flat memory in the
/// configuration's precision, as in ModuleMemory. If that is 16 bits and all
/// parameters are float32, float32 buffers are converted to it too. Otherwise
/// buffers keep their types. If some trained parameters have these 16 bits,
/// float32 ones stay float32 (not with the semantics of DeepSpeed). Frozen
/// parameters do not change. Do not call backward() or step() after the module
/// is destroyed. Parameters on another device stay there; this class copies
/// them to and from flat memory on the host. The engine sets gradients to 0. A
/// later engine of the same module replaces this one, which may be destroyed at
/// any time.
class Engine {
 public:
  /// Sends rank 0's parameters to all ranks, and buffers as config::Buffers
  /// specifies. Collective. Masters are copied from the parameters before these
  /// are rounded to 16 bits. Throws like ModuleMemory and engine::Engine, and
  /// Error(kInvalidArgument) on all ranks if their buffers differ in name, type
  /// or shape. `comm` must outlive this object.
  Engine(const ::torch::nn::Module& module, comm::Communicator& comm,
         const config::Config& config, const EngineOptions& options = {})
      : Engine(module, comm, with(config, options), options.group_of,
               values_before(module, comm, config)) {}
  Engine(const ::torch::nn::Module& module, comm::Communicator& comm,
         const config::Config& config, const GroupOf& group_of)
      : Engine(module, comm, config, EngineOptions{.group_of = group_of}) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Computes and collects the gradients of `loss`, a scalar of float32 or
  /// float64. In fp16 its scaled gradient would overflow, so compute it from
  /// logits.to(torch::kFloat). It is multiplied by the loss scale and divided
  /// by gradient_accumulation_steps. Throws Error(kFailedPrecondition) naming a
  /// parameter or gradient that was replaced, or a parameter that was added or
  /// removed, since construction. Also throws it after a call of
  /// loss.backward(). An exception of a hook or function is rethrown unchanged.
  /// If gradients have been sent by then, it is nested in an
  /// Error(kCommFailure) with its text, which the other ranks also get.
  void backward(const at::Tensor& loss) {
    require_loss(loss);
    require_same_parameters();
    own().begin_backward();
    if (staged_) staged_->begin();
    backwards_.run(
        loss, own().loss_factor(),
        [this] {
          if (staged_) staged_->finish();
        },
        [this](std::string_view reason) {
          if (staged_) staged_->cancel();
          own().cancel_backward(reason);
        });
    own().end_backward();
  }
  /// Runs engine::Engine::step().
  engine::EngineReport step() {
    require_same_parameters();
    const engine::EngineReport report = own().step(memory_.final_range());
    if (!report.at_boundary) return report;
    memory_.send_parameters();
    if (staged_) staged_->begin_window();
    return report;
  }
  /// Returns engine::Engine::mean().
  [[nodiscard]] double mean(double value) { return own().mean(value); }
  /// Returns the mean of tensors of one element. Throws Error(kInvalidArgument)
  /// for others.
  [[nodiscard]] double mean(const at::Tensor& value) {
    return mean(number_in(value));
  }

  /// Call the functions of engine::Engine.
  void set_learning_rate(std::size_t group, double learning_rate) {
    own().learning_rates().set(group, learning_rate);
  }
  void set_learning_rate(double learning_rate) {
    own().learning_rates().set(learning_rate);
  }
  void set_schedule(config::LearningRateFunction schedule) {
    own().learning_rates().set_schedule(std::move(schedule));
  }

  /// A scope in which backwards are summed and step() does nothing.
  class Accumulation {
   public:
    explicit Accumulation(engine::Engine& engine) : engine_(engine) {
      engine_.set_accumulation_boundary(false);
    }
    ~Accumulation() { engine_.set_accumulation_boundary(std::nullopt); }
    Accumulation(const Accumulation&) = delete;
    Accumulation& operator=(const Accumulation&) = delete;

   private:
    engine::Engine& engine_;
  };
  [[nodiscard]] Accumulation no_sync() { return Accumulation(own()); }

  using Evaluation = EvaluationScope<Engine>;
  /// Begins an evaluation. Collective.
  [[nodiscard]] Evaluation evaluation() { return Evaluation(*this); }

  /// Call the functions of engine::Engine. A checkpoint also has rank 0's
  /// buffers and frozen parameters, as in ModuleOthers, and load() copies them
  /// to all ranks. Throw Error(kFailedPrecondition) if step() would.
  checkpoint::SaveReport save(const std::string& root,
                              const checkpoint::Extra& extra = {},
                              const checkpoint::SaveOptions& options = {}) {
    require_same_parameters();
    return own().save(root, extra, options);
  }
  checkpoint::LoadReport load(const std::string& path,
                              const checkpoint::LoadOptions& options = {}) {
    require_same_parameters();
    checkpoint::LoadReport report = at_rest().load(path, options);
    others_.write_back();
    memory_.send_parameters();
    divide_own(report, own().communicator().rank());
    return report;
  }
  std::optional<checkpoint::LoadReport> resume(
      const std::string& path, const checkpoint::LoadOptions& options = {}) {
    require_same_parameters();
    auto report = at_rest().resume(path, options);
    if (report) others_.write_back();
    memory_.send_parameters();
    if (report) divide_own(*report, own().communicator().rank());
    return report;
  }

  /// Returns the engine. If the module is on a device, it first waits for
  /// copies of parameters: calls of the engine may write the memory that these
  /// read. After a call that changes parameters, call send_parameters().
  [[nodiscard]] engine::Engine& core() {
    memory_.wait();
    return own();
  }
  /// Copies parameters to the device of the module, except those that the
  /// program has written there; see ModuleMemory.
  void send_parameters() {
    memory_.take_in_written();
    memory_.send_parameters();
  }
  [[nodiscard]] const ParameterLayout& layout() const noexcept {
    return memory_.layout();
  }
  [[nodiscard]] View params() { return memory_.params(); }

 private:
  Engine(const ::torch::nn::Module& module, comm::Communicator& comm,
         const config::Config& config, const GroupOf& group_of,
         const std::vector<at::Tensor>& before)
      : module_(module),
        buffers_(module, comm),
        memory_(module, group_of, config.precision.dtype,
                engine::keeps_gradients(config, comm.size())
                    ? Gradients::kInPlace
                    : Gradients::kReleased,
                keeps_float32(config)),
        core_(make_core(comm, memory_, config, before)),
        others_(module),
        backwards_(memory_.tensors(),
                   [this](std::size_t index, const at::Tensor& tensor) {
                     take(index, tensor);
                   }) {
    if (config.precision.dtype != DType::kFloat32)
      buffers_.convert(ModuleMemory::scalar_type(config.precision.dtype));
    memory_.send_parameters();
    if (memory_.staging() != nullptr) staged_.emplace(memory_, own());
    buffers_.make_equal(config.buffers);
    own().set_others([this] { return others_.describe(); });
  }

  friend Evaluation;
  void begin_evaluation() {
    at_rest().begin_evaluation();
    memory_.send_parameters();
    buffers_.make_equal(own().config().buffers);
  }
  void end_evaluation() { own().end_evaluation(); }

  static config::Config with(config::Config config,
                             const EngineOptions& options) {
    if (options.buffers) config.buffers = *options.buffers;
    return config;
  }
  // Copies values that the program has written into parameters to flat memory.
  void require_same_parameters() {
    backwards_.require_own();
    memory_.check();
    memory_.take_in_written();
    if (staged_) staged_->check();
    require_unchanged(trained_parameters(module_, own().config()), memory_);
  }
  [[nodiscard]] engine::Engine& own() noexcept { return *core_; }
  // Waits until flat memory may be written, and returns the engine.
  engine::Engine& at_rest() {
    memory_.take_in_written();
    return core();
  }
  // Takes a gradient, which is complete for this backward.
  void take(std::size_t index, const at::Tensor& tensor) {
    if (staged_) {
      staged_->take(index, tensor);
    } else if (memory_.grads().empty()) {
      // The gradient is copied into its bucket and freed before the next one is
      // computed.
      at::Tensor parameter = tensor;
      const at::Tensor gradient = parameter.grad().contiguous();
      parameter.mutable_grad().reset();
      const MemoryNote note(MemoryKind::kGradients, gradient.nbytes());
      own().gradient_ready(index, ModuleMemory::view(gradient));
    } else {
      own().gradient_ready(index);
    }
  }

  const ::torch::nn::Module& module_;
  ModuleBuffers buffers_;
  ModuleMemory memory_;
  std::unique_ptr<engine::Engine> core_;
  std::optional<StagedGradients> staged_{};  // of a module on a device
  ModuleOthers others_;
  Backwards backwards_;
};

}  // namespace thinwire::torch
