// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"
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

/// The form of engine::Engine for a LibTorch module: gradients are averaged
/// while backward() still computes others.
///
///   torch::Engine engine(*model, *comm, config::Config::from_file(path));
///   ...
///   engine.backward(model->forward(batch));
///   const auto report = engine.step();
///
/// The module's trainable parameters become views of flat memory in the
/// configuration's precision, as in ModuleMemory. If that is 16 bits, floating
/// buffers are converted to it too. If some parameters already have these 16
/// bits, float32 parameters and buffers stay float32 (not with the semantics of
/// DeepSpeed). Frozen parameters stay as they are. Do not call backward() or
/// step() after the module is destroyed. Parameters on another device stay
/// there; flat memory on the host has copies, which this class moves. The
/// engine zeroes the gradients. A later engine of the same module takes it
/// over, whenever this one is destroyed.
class Engine {
 public:
  /// Sends rank 0's parameters to all ranks, and buffers as config::Buffers
  /// specifies. Collective. Masters are made of the parameters before they are
  /// rounded to 16 bits. Throws like ModuleMemory and engine::Engine, and
  /// Error(kInvalidArgument) on all ranks if their buffers differ in name, type
  /// or shape. `comm` must outlive this object.
  Engine(const ::torch::nn::Module& module, comm::Communicator& comm,
         const config::Config& config, const EngineOptions& options = {});
  Engine(const ::torch::nn::Module& module, comm::Communicator& comm,
         const config::Config& config, const GroupOf& group_of)
      : Engine(module, comm, config, EngineOptions{.group_of = group_of}) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Computes and collects the gradients of `loss`, a scalar of float32 or
  /// float64. In fp16 its scaled gradient would overflow, so compute it from
  /// logits.to(torch::kFloat). It is multiplied by the loss scale and divided
  /// by gradient_accumulation_steps. Throws Error(kFailedPrecondition) naming a
  /// parameter or gradient that was replaced, or a parameter that was added or
  /// removed, since construction. It does so too after a backward() of the loss
  /// itself. An exception of a hook or function passes through unchanged. If
  /// gradients have been sent by then, it is nested in an Error(kCommFailure)
  /// with its text, and the other ranks get that text too.
  void backward(const at::Tensor& loss);
  /// Runs engine::Engine::step().
  engine::EngineReport step();
  /// Returns engine::Engine::mean().
  [[nodiscard]] double mean(double value) { return own().mean(value); }
  /// Returns the mean of tensors of one element. Throws Error(kInvalidArgument)
  /// for others.
  [[nodiscard]] double mean(const at::Tensor& value);

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

  /// A scope in which parameters and, by config::Buffers, buffers are equal on
  /// all ranks, nothing is recorded for a backward, and there is no step.
  class Evaluation {
   public:
    explicit Evaluation(Engine& engine) : Evaluation(engine.at_rest()) {
      engine.memory_.send_parameters();
      engine.buffers_.make_equal(engine.own().config().buffers);
    }
    ~Evaluation() { engine_.end_evaluation(); }
    Evaluation(const Evaluation&) = delete;
    Evaluation& operator=(const Evaluation&) = delete;

   private:
    explicit Evaluation(engine::Engine& engine) : engine_(engine) {
      engine_.begin_evaluation();
    }
    engine::Engine& engine_;
    ::torch::NoGradGuard no_grad_;
  };
  /// Begins an evaluation. Collective.
  [[nodiscard]] Evaluation evaluation() { return Evaluation(*this); }

  /// Call the functions of engine::Engine. A checkpoint also has rank 0's
  /// buffers and frozen parameters, as in ModuleOthers, and load() gives them
  /// to all ranks. Throw Error(kFailedPrecondition) if step() would.
  checkpoint::SaveReport save(const std::string& root,
                              const checkpoint::Extra& extra = {},
                              const checkpoint::SaveOptions& options = {}) {
    require_same_parameters();
    return own().save(root, extra, options);
  }
  checkpoint::LoadReport load(const std::string& path,
                              const checkpoint::LoadOptions& options = {});
  std::optional<checkpoint::LoadReport> resume(
      const std::string& path, const checkpoint::LoadOptions& options = {});

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
  // State for the hooks of tensors, which may outlive the engine.
  struct Link {
    std::unique_ptr<engine::Engine> core;
    bool releases = false;  // gradients, instead of keeping them
    DType dtype = DType::kFloat32;
    bool in_backward = false;
    std::optional<StagedGradients> staged{};  // of a module on a device
    bool has_foreign_gradients = false;       // from another backward()
  };
  struct Hook final : ::torch::autograd::PostAccumulateGradHook {
    Hook(const std::shared_ptr<Link>& engine, std::size_t parameter)
        : link(engine), index(parameter) {}
    void operator()(const ::torch::autograd::Variable& tensor) override {
      const std::shared_ptr<Link> engine = link.lock();
      if (!engine) return;
      if (!engine->in_backward) {
        engine->has_foreign_gradients = true;
      } else if (engine->staged) {
        engine->staged->take(index, tensor);
      } else if (engine->releases) {
        // Copied into its bucket, and freed before the next one is computed.
        at::Tensor parameter = tensor;
        const at::Tensor gradient = parameter.grad().contiguous();
        parameter.mutable_grad().reset();
        const MemoryNote note(MemoryKind::kGradients, gradient.nbytes());
        engine->core->gradient_ready(
            index,
            ConstView(gradient.const_data_ptr(),
                      static_cast<std::size_t>(gradient.numel()),
                      gradient.scalar_type() == at::kFloat ? DType::kFloat32
                                                           : engine->dtype));
      } else {
        engine->core->gradient_ready(index);
      }
    }
    std::weak_ptr<Link> link;
    std::size_t index;
  };

  // Parameters in fp32 before the module is rounded; empty if they stay fp32.
  using Values = std::vector<at::Tensor>;
  Engine(const ::torch::nn::Module& module, comm::Communicator& comm,
         const config::Config& config, const GroupOf& group_of,
         const Values& before);

  // The reference converts all parameters.
  static bool keeps_float32(const config::Config& config) {
    return config.semantics == config::Semantics::kCorrected;
  }
  // Returns the trained parameters in the order of the layout.
  static std::vector<NamedParameter> in_order(const ::torch::nn::Module& module,
                                              const config::Config& config) {
    std::vector<NamedParameter> all = trainable_parameters(module);
    if (!keeps_float32(config)) return all;
    return in_memory_order(std::move(all),
                           ModuleMemory::scalar_type(config.precision.dtype));
  }
  static config::Config with(config::Config config,
                             const EngineOptions& options) {
    if (options.buffers) config.buffers = *options.buffers;
    return config;
  }
  static Values values_of(const ::torch::nn::Module& module,
                          const comm::Communicator& comm,
                          const config::Config& config);
  static Buffer flat(const Values& values, const ParameterLayout& layout);
  // Takes in what the program has written into parameters.
  void require_same_parameters();
  [[nodiscard]] engine::Engine& own() noexcept { return *link_->core; }
  // Returns the engine when flat memory may be written.
  engine::Engine& at_rest() {
    memory_.take_in_written();
    return core();
  }
  void cancel_backward(std::string_view reason);

  const ::torch::nn::Module& module_;
  ModuleBuffers buffers_;
  ModuleMemory memory_;
  std::shared_ptr<Link> link_ = std::make_shared<Link>();
  ModuleOthers others_;
};

// Does not copy fp32 tensors: they have the memory that the module had.
inline Engine::Values Engine::values_of(const ::torch::nn::Module& module,
                                        const comm::Communicator& comm,
                                        const config::Config& config) {
  config.validate(comm.size());  // before the module changes
  Values values;
  if (config.precision.dtype != DType::kFloat32)
    for (const NamedParameter& parameter : in_order(module, config))
      values.push_back(
          parameter.tensor.detach().to(at::kCPU, at::kFloat).contiguous());
  return values;
}

inline Buffer Engine::flat(const Values& values,
                           const ParameterLayout& layout) {
  if (values.empty()) return {};
  Buffer all = Buffer::of<float>(layout.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float* from = values[i].const_data_ptr<float>();
    std::copy(from, from + values[i].numel(),
              all.as<float>().data() + layout.parameters()[i].offset);
  }
  return all;
}

inline Engine::Engine(const ::torch::nn::Module& module,
                      comm::Communicator& comm, const config::Config& config,
                      const EngineOptions& options)
    : Engine(module, comm, with(config, options), options.group_of,
             values_of(module, comm, config)) {}

inline Engine::Engine(const ::torch::nn::Module& module,
                      comm::Communicator& comm, const config::Config& config,
                      const GroupOf& group_of, const Values& before)
    : module_(module),
      buffers_(module, comm),
      memory_(module, group_of, config.precision.dtype,
              engine::keeps_gradients(config, comm.size())
                  ? Gradients::kInPlace
                  : Gradients::kReleased,
              keeps_float32(config)),
      others_(module) {
  link_->releases = memory_.grads().empty();
  link_->dtype = config.precision.dtype;
  const bool is_sharded = engine::shards_masters(config);
  link_->core = std::make_unique<engine::Engine>(
      comm, memory_.layout(), config, memory_.params(), memory_.grads(),
      is_sharded ? ConstView() : flat(before, layout()).view());
  // Sets shards of masters parameter by parameter: no rank has memory for all.
  if (is_sharded && !before.empty())
    for (const optim::HeldParameters& held :
         optim::held_parameters(comm, layout(), config.experts()))
      for (const std::size_t i : held.parameters) {
        std::vector<float> values(static_cast<std::size_t>(before[i].numel()));
        std::copy_n(before[i].const_data_ptr<float>(), values.size(),
                    values.data());
        held.comm->broadcast(values, 0);
        own().whole_values().set_parameter(layout().parameters()[i].name,
                                           values);
      }
  if (config.precision.dtype != DType::kFloat32 && memory_.num_wide() == 0)
    buffers_.convert(ModuleMemory::scalar_type(config.precision.dtype));
  memory_.send_parameters();
  if (memory_.staging() != nullptr) link_->staged.emplace(memory_, own());
  buffers_.make_equal(config.buffers);
  own().set_others([this] { return others_.describe(); });
  for (std::size_t i = 0; i < memory_.tensors().size(); ++i)
    ::torch::autograd::impl::set_post_acc_grad_hooks(
        memory_.tensors()[i], std::make_unique<Hook>(link_, i));
}

// Leaves tensors alone that belong to another engine by now.
inline Engine::~Engine() {
  for (const at::Tensor& tensor : memory_.tensors()) {
    auto& hook = ::torch::autograd::impl::post_acc_grad_hooks(tensor);
    const auto* const own = dynamic_cast<const Hook*>(hook.get());
    if (own != nullptr && own->link.lock() == link_) hook.reset();
  }
}

inline void Engine::require_same_parameters() {
  if (link_->has_foreign_gradients)
    throw Error(ErrorCode::kFailedPrecondition,
                "gradients were computed by a backward() that is not the "
                "engine's, without its loss scale: call engine.backward(loss) "
                "instead of loss.backward(), and make a new engine");
  memory_.check();
  memory_.take_in_written();
  if (link_->staged) link_->staged->check();
  const std::vector<NamedParameter> now =
      in_order(module_, link_->core->config());
  const std::vector<at::Tensor>& then = memory_.tensors();
  const auto is_same = [](const NamedParameter& a, const at::Tensor& b) {
    return a.tensor.is_same(b);
  };
  if (std::equal(now.begin(), now.end(), then.begin(), then.end(), is_same))
    return;
  const auto require = [](bool holds, const std::string& name,
                          const char* what) {
    if (!holds)
      throw Error(ErrorCode::kFailedPrecondition,
                  "parameter '" + name + "' was " + what +
                      " after the engine was made: make a new one");
  };
  for (std::size_t i = 0; i < then.size(); ++i)
    require(std::any_of(now.begin(), now.end(),
                        [&](const NamedParameter& parameter) {
                          return is_same(parameter, then[i]);
                        }),
            layout().parameters()[i].name, "frozen or removed");
  for (const NamedParameter& parameter : now)
    require(std::any_of(then.begin(), then.end(),
                        [&](const at::Tensor& tensor) {
                          return is_same(parameter, tensor);
                        }),
            parameter.name, "added or unfrozen");
}

inline void Engine::backward(const at::Tensor& loss) {
  const auto require = [](bool holds, const std::string& text) {
    if (!holds)
      throw Error(ErrorCode::kInvalidArgument, "loss must be " + text);
  };
  require(loss.defined() && loss.numel() == 1, "a scalar");
  require(loss.requires_grad(), "computed from the module's parameters");
  require(loss.scalar_type() == at::kFloat || loss.scalar_type() == at::kDouble,
          std::string("float32 or float64 (compute it from "
                      "logits.to(torch::kFloat)), got ") +
              c10::toString(loss.scalar_type()));
  require_same_parameters();
  own().begin_backward();
  link_->in_backward = true;
  if (link_->staged) link_->staged->begin();
  try {
    (loss * own().loss_factor()).backward();
    if (link_->staged) link_->staged->finish();
  } catch (const c10::Error& error) {
    cancel_backward(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    cancel_backward(error.what());
    throw;
  } catch (...) {
    cancel_backward("backward threw what is no std::exception");
    throw;
  }
  link_->in_backward = false;
  own().end_backward();
}

// Runs while the exception that ended backward is handled; an exception thrown
// here nests it.
inline void Engine::cancel_backward(std::string_view reason) {
  link_->in_backward = false;
  if (link_->staged) link_->staged->cancel();
  std::optional<Error> lost;
  try {
    own().cancel_backward(reason);
  } catch (const Error& error) {
    lost = error;
  }
  if (!lost) return;
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCommFailure) throw;  // says it already
  } catch (...) {
    // Any other exception is the cause.
  }
  std::throw_with_nested(*lost);
}

inline double Engine::mean(const at::Tensor& value) {
  if (!value.defined() || value.numel() != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "mean: value must be a tensor of one element, got " +
                    (value.defined() ? std::to_string(value.numel())
                                     : std::string("none")));
  return mean(value.detach().to(at::kDouble).item<double>());
}

inline checkpoint::LoadReport Engine::load(
    const std::string& path, const checkpoint::LoadOptions& options) {
  require_same_parameters();
  checkpoint::LoadReport report = at_rest().load(path, options);
  others_.write_back();
  memory_.send_parameters();
  return report;
}

inline std::optional<checkpoint::LoadReport> Engine::resume(
    const std::string& path, const checkpoint::LoadOptions& options) {
  require_same_parameters();
  auto report = at_rest().resume(path, options);
  if (report) others_.write_back();
  memory_.send_parameters();
  return report;
}

inline engine::EngineReport Engine::step() {
  require_same_parameters();
  const engine::EngineReport report = own().step(memory_.final_range());
  if (!report.at_boundary) return report;
  memory_.send_parameters();
  if (link_->staged) link_->staged->begin_window();
  return report;
}

}  // namespace thinwire::torch
