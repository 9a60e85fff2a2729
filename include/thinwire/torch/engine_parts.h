// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/engine/engine.h"
#include "thinwire/torch/module_memory.h"

// Parts of the engines of modules, with and without leaders.
namespace thinwire::torch {

/// Returns whether fp32 parameters stay fp32 if others are 16-bit. DeepSpeed
/// converts all parameters.
inline bool keeps_float32(const config::Config& config) {
  return config.semantics == config::Semantics::kCorrected;
}

/// Returns the trained parameters in the order of the layout.
inline std::vector<NamedParameter> trained_parameters(
    const ::torch::nn::Module& module, const config::Config& config) {
  std::vector<NamedParameter> all = trainable_parameters(module);
  if (!keeps_float32(config)) return all;
  return in_memory_order(std::move(all),
                         ModuleMemory::scalar_type(config.precision.dtype));
}

/// Returns parameters in fp32, of which masters are made, before the module is
/// rounded to 16 bits. Empty if they stay fp32, because they then keep the
/// module's memory. Throws like Config::validate().
inline std::vector<at::Tensor> values_before(const ::torch::nn::Module& module,
                                             const comm::Communicator& comm,
                                             const config::Config& config) {
  config.validate(comm.size());  // before the module changes
  std::vector<at::Tensor> values;
  if (config.precision.dtype != DType::kFloat32)
    for (const NamedParameter& parameter : trained_parameters(module, config))
      values.push_back(
          parameter.tensor.detach().to(at::kCPU, at::kFloat).contiguous());
  return values;
}

/// Makes the engine of a module's memory, with masters of values_before().
/// Collective. Throws like engine::Engine.
inline std::unique_ptr<engine::Engine> make_core(
    comm::Communicator& comm, ModuleMemory& memory,
    const config::Config& config, const std::vector<at::Tensor>& before) {
  const ParameterLayout& layout = memory.layout();
  const bool is_sharded = engine::shards_masters(config);
  Buffer initial;
  if (!is_sharded && !before.empty()) {
    initial = Buffer::of<float>(layout.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      const float* from = before[i].const_data_ptr<float>();
      std::copy(from, from + before[i].numel(),
                initial.as<float>().data() + layout.parameters()[i].offset);
    }
  }
  auto core = std::make_unique<engine::Engine>(
      comm, layout, config, memory.params(), memory.grads(), initial.view());
  // Sets shards of masters parameter by parameter, because no rank has memory
  // for all of them.
  if (is_sharded && !before.empty())
    for (const optim::HeldParameters& held :
         optim::held_parameters(comm, layout, config.experts()))
      for (const std::size_t i : held.parameters) {
        std::vector<float> values(static_cast<std::size_t>(before[i].numel()));
        std::copy_n(before[i].const_data_ptr<float>(), values.size(),
                    values.data());
        held.comm->broadcast(values, 0);
        core->whole_values().set_parameter(layout.parameters()[i].name, values);
      }
  return core;
}

/// Throws Error(kFailedPrecondition) naming a parameter that was frozen,
/// removed, added or unfrozen since the engine was made.
inline void require_unchanged(const std::vector<NamedParameter>& now,
                              const ModuleMemory& memory) {
  const std::vector<at::Tensor>& then = memory.tensors();
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
            memory.layout().parameters()[i].name, "frozen or removed");
  for (const NamedParameter& parameter : now)
    require(std::any_of(then.begin(), then.end(),
                        [&](const at::Tensor& tensor) {
                          return is_same(parameter, tensor);
                        }),
            parameter.name, "added or unfrozen");
}

/// Throws Error(kInvalidArgument) unless `loss` is a scalar of fp32 or float64
/// that requires a gradient.
inline void require_loss(const at::Tensor& loss) {
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
}

/// Returns the value of a tensor of one element. Throws Error(kInvalidArgument)
/// for others.
inline double number_in(const at::Tensor& value) {
  if (!value.defined() || value.numel() != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "mean: value must be a tensor of one element, got " +
                    (value.defined() ? std::to_string(value.numel())
                                     : std::string("none")));
  return value.detach().to(at::kDouble).item<double>();
}

/// A scope in which parameters and, by config::Buffers, buffers are equal on
/// all ranks, nothing is recorded for a backward, and there is no step.
template <class Owner>
class EvaluationScope {
 public:
  explicit EvaluationScope(Owner& engine) : engine_(engine) {
    engine.begin_evaluation();
  }
  ~EvaluationScope() { engine_.end_evaluation(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Owner& engine_;
  ::torch::NoGradGuard no_grad_;
};

/// The backwards of an engine. Each passes its gradients to a function as soon
/// as they are complete.
class Backwards {
 public:
  /// Takes the gradient of a parameter.
  using Take = std::function<void(std::size_t index, const at::Tensor&)>;

  Backwards(std::vector<at::Tensor> parameters, Take take)
      : parameters_(std::move(parameters)),
        shared_(std::make_shared<Shared>(Shared{.take = std::move(take)})) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      ::torch::autograd::impl::set_post_acc_grad_hooks(
          parameters_[i], std::make_unique<Hook>(shared_, i));
  }
  // Does not touch tensors that now belong to another engine.
  ~Backwards() {
    for (const at::Tensor& tensor : parameters_) {
      auto& hook = ::torch::autograd::impl::post_acc_grad_hooks(tensor);
      const auto* const own = dynamic_cast<const Hook*>(hook.get());
      if (own != nullptr && own->shared.lock() == shared_) hook.reset();
    }
  }
  Backwards(const Backwards&) = delete;
  Backwards& operator=(const Backwards&) = delete;

  /// Throws Error(kFailedPrecondition) if gradients came from another backward.
  void require_own() const {
    if (shared_->has_foreign_gradients)
      throw Error(ErrorCode::kFailedPrecondition,
                  "gradients were computed by a backward() that is not the "
                  "engine's, without its loss scale: call "
                  "engine.backward(loss) instead of loss.backward(), and make "
                  "a new engine");
  }

  /// Computes the gradients of loss * factor, and calls `finish`. If either
  /// throws, passes the exception's text to `cancel` and rethrows it. If
  /// `cancel` throws an Error, throws that Error with the first exception
  /// nested in it.
  void run(const at::Tensor& loss, double factor,
           const std::function<void()>& finish,
           const std::function<void(std::string_view)>& cancel) {
    shared_->is_running = true;
    try {
      (loss * factor).backward();
      finish();
    } catch (const c10::Error& error) {
      rethrow(cancel, error.what_without_backtrace());
    } catch (const std::exception& error) {
      rethrow(cancel, error.what());
    } catch (...) {
      rethrow(cancel, "backward threw what is no std::exception");
    }
    shared_->is_running = false;
  }

 private:
  // Hooks of tensors may outlive the engine.
  struct Shared {
    Take take;
    bool is_running = false;
    bool has_foreign_gradients = false;
  };
  struct Hook final : ::torch::autograd::PostAccumulateGradHook {
    Hook(const std::shared_ptr<Shared>& engine, std::size_t parameter)
        : shared(engine), index(parameter) {}
    void operator()(const ::torch::autograd::Variable& tensor) override {
      const std::shared_ptr<Shared> engine = shared.lock();
      if (!engine) return;
      if (engine->is_running)
        engine->take(index, tensor);
      else
        engine->has_foreign_gradients = true;
    }
    std::weak_ptr<Shared> shared;
    std::size_t index;
  };

  // Runs while the exception that ended backward is handled.
  [[noreturn]] void rethrow(const std::function<void(std::string_view)>& cancel,
                            std::string_view reason) {
    shared_->is_running = false;
    std::optional<Error> lost;
    try {
      cancel(reason);
    } catch (const Error& error) {
      lost = error;
    }
    if (!lost) throw;
    try {
      throw;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCommFailure) throw;  // says it already
    } catch (...) {
      // Any other exception is the cause.
    }
    std::throw_with_nested(*lost);
  }

  std::vector<at::Tensor> parameters_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace thinwire::torch
