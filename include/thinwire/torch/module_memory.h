// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::torch {

/// The optimizer group of a parameter; groups count from 0 without gaps.
using GroupOf =
    std::function<std::size_t(std::string_view name, const at::Tensor&)>;

/// A parameter and its first name.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// The module's distinct parameters that require a gradient, in the order of
/// their registration.
inline std::vector<NamedParameter> trainable_parameters(
    const ::torch::nn::Module& module) {
  std::vector<NamedParameter> found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second)
      found.push_back({item.key(), item.value()});
  return found;
}

/// Where the gradients of a module are.
enum class Gradients {
  kInPlace,   ///< In a flat array, from one step to the next.
  kReleased,  ///< Nowhere: a hook takes each and undefines it at once.
};

/// Moves the trainable parameters of a module, and their gradients, into two
/// flat arrays: each tensor becomes a view of its place there, so backward()
/// writes where Optimizer::step() reads, and nothing is copied in between.
///
///   torch::ModuleMemory memory(*model);
///   optim::OnebitAdam optimizer(comm, memory.layout(), {.freeze_step = 100});
///   ...
///   memory.zero_grad();
///   loss.backward();
///   memory.check();
///   optimizer.step(memory.params(), memory.grads());
///
/// Local. Dense parameters on the CPU, all float32, all float16 or all
/// bfloat16, unless they are converted; their gradients are of the same type. A
/// parameter that takes no part in a backward has gradient zero. Parameters
/// that do not require a gradient are left where they are; one registered under
/// two names counts once, under the first. The arrays live as long as this
/// object or any of the tensors. A later ModuleMemory of the same module takes
/// the tensors over, and this one is of no use any more.
class ModuleMemory {
 public:
  /// Keeps values, and gradients that are already there; with `dtype` both are
  /// converted to it. Throws Error(kInvalidArgument) naming the parameter if
  /// one is of another type than the others and not converted, not on the CPU
  /// or not dense, and
  /// Error(kFailedPrecondition) if there is none to train; nothing has changed
  /// then. From now on a backward that gives a parameter a sparse gradient
  /// throws Error(kInvalidArgument).
  /// With kReleased there are no gradients, and those that were there are
  /// dropped.
  explicit ModuleMemory(const ::torch::nn::Module& module,
                        const GroupOf& group_of = {},
                        std::optional<DType> dtype = std::nullopt,
                        Gradients gradients = Gradients::kInPlace);

  [[nodiscard]] const ParameterLayout& layout() const noexcept {
    return layout_;
  }
  /// The parameters in layout order, which are views of the flat arrays.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const noexcept {
    return tensors_;
  }
  /// The flat arrays, layout().size() elements of one type; grads() is empty
  /// with kReleased.
  [[nodiscard]] View params() noexcept { return params_->view(); }
  [[nodiscard]] View grads() noexcept { return grads_->view(); }

  /// Sets every gradient to 0 and keeps it in place, which
  /// module.zero_grad() does not.
  void zero_grad() { flat_grads_.zero_(); }

  /// Throws Error(kFailedPrecondition) naming the first parameter or gradient
  /// that is no longer a view of the flat arrays, and what is likely to have
  /// replaced it. Cheap: call it before every step.
  void check() const;

  static at::ScalarType scalar_type(DType dtype);

 private:
  void require_supported(const std::string& name, const at::Tensor& tensor,
                         bool is_converted) const;
  void re_home(const Parameter& place, at::Tensor& tensor) const;
  void check_gradient(const Parameter& place, const at::Tensor& tensor) const;
  static bool is_view(const at::Tensor& tensor, const at::Tensor& flat,
                      const Parameter& place);
  static at::Tensor wrap(const std::shared_ptr<Buffer>& buffer);
  static at::Tensor view_of(const at::Tensor& flat, const Parameter& place);

  // Those that were set on the tensors, which outlive this object.
  struct Hooks {
    Hooks() = default;
    Hooks(const Hooks&) = delete;
    Hooks& operator=(const Hooks&) = delete;
    ~Hooks() {
      for (const auto& [tensor, number] : all) tensor.remove_hook(number);
    }
    std::vector<std::pair<at::Tensor, unsigned>> all;
  };

  Gradients gradients_;
  ParameterLayout layout_;
  std::vector<at::Tensor> tensors_;  // In layout order.
  std::shared_ptr<Buffer> params_;
  std::shared_ptr<Buffer> grads_;
  at::Tensor flat_params_;
  at::Tensor flat_grads_;
  std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
};

inline ModuleMemory::ModuleMemory(const ::torch::nn::Module& module,
                                  const GroupOf& group_of,
                                  std::optional<DType> dtype,
                                  Gradients gradients)
    : gradients_(gradients) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor] : trainable_parameters(module)) {
    require_supported(name, tensor, dtype.has_value());
    const auto sizes = tensor.sizes();
    specs.push_back({.name = name,
                     .shape = {sizes.begin(), sizes.end()},
                     .group = group_of ? group_of(name, tensor) : 0});
    tensors_.push_back(tensor);
  }
  if (specs.empty()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "module: no parameter requires a gradient, so there is nothing "
                "to train");
  }
  layout_ = ParameterLayout::of(std::move(specs));
  if (!dtype) {
    dtype = DType::kFloat32;
    for (const DType half : {DType::kFloat16, DType::kBFloat16})
      if (tensors_.front().scalar_type() == scalar_type(half)) dtype = half;
  }
  {
    const MemoryScope scope(MemoryKind::kParameters);
    params_ = std::make_shared<Buffer>(layout_.size(), *dtype);
  }
  const MemoryScope scope(MemoryKind::kGradients);
  grads_ = std::make_shared<Buffer>(
      gradients == Gradients::kInPlace ? layout_.size() : 0, *dtype);
  flat_params_ = wrap(params_);
  flat_grads_ = wrap(grads_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    re_home(layout_.parameters()[i], tensors_[i]);
  }
}

inline void ModuleMemory::check() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Parameter& place = layout_.parameters()[i];
    if (!is_view(tensors_[i], flat_params_, place)) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "parameter '" + place.name +
                      "' was replaced after its engine or ModuleMemory was "
                      "made (torch::load, module.to() and set_data() do that): "
                      "load and convert the module first, then make a new one");
    }
    check_gradient(place, tensors_[i]);
  }
}

inline void ModuleMemory::require_supported(const std::string& name,
                                            const at::Tensor& tensor,
                                            bool is_converted) const {
  const auto refuse = [&](const char* what, const std::string& value) {
    throw Error(ErrorCode::kInvalidArgument,
                "parameter '" + name + "': " + what + ", got " + value);
  };
  if (!tensor.device().is_cpu()) {
    refuse("must be on the CPU, as all others", tensor.device().str());
  }
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) {
    refuse("must be Float, Half or BFloat16", c10::toString(type));
  }
  if (!is_converted && !tensors_.empty() &&
      type != tensors_.front().scalar_type()) {
    refuse("must be of the same type as all others", c10::toString(type));
  }
  if (tensor.layout() != at::kStrided) {
    refuse("must be dense", "a sparse tensor");
  }
  if (tensor.grad().defined() && tensor.grad().layout() != at::kStrided) {
    refuse("its gradient must be dense",
           "a sparse one (make the layer with sparse(false))");
  }
}

inline void ModuleMemory::re_home(const Parameter& place,
                                  at::Tensor& tensor) const {
  const ::torch::NoGradGuard no_grad;
  const at::Tensor param = view_of(flat_params_, place);
  at::Tensor grad;
  if (gradients_ == Gradients::kInPlace) {
    grad = view_of(flat_grads_, place);
    if (tensor.grad().defined()) grad.copy_(tensor.grad());
  }
  param.copy_(tensor);
  tensor.mutable_grad().reset();
  tensor.set_data(param);
  tensor.mutable_grad() = grad;
  // Autograd would add a sparse gradient to a dense one without a word.
  const unsigned number =
      tensor.register_hook([name = place.name](const at::Tensor& gradient) {
        if (gradient.layout() == at::kStrided) return;
        throw Error(ErrorCode::kInvalidArgument,
                    "parameter '" + name +
                        "': its gradient must be dense, got a sparse one (make "
                        "the layer with sparse(false))");
      });
  hooks_->all.emplace_back(tensor, number);
}

inline void ModuleMemory::check_gradient(const Parameter& place,
                                         const at::Tensor& tensor) const {
  const at::Tensor& grad = tensor.grad();
  if (gradients_ == Gradients::kReleased) {
    if (!grad.defined()) return;
    throw Error(ErrorCode::kFailedPrecondition,
                "gradient of '" + place.name +
                    "' was set after the engine was made: with this "
                    "configuration gradients are handed over and released "
                    "during backward()");
  }
  if (!grad.defined()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "gradient of '" + place.name +
                    "' is gone: zero_grad() of a module or of a torch "
                    "optimizer drops gradients. An engine's step() sets them "
                    "to 0: remove that call; without an engine "
                    "ModuleMemory::zero_grad() does it");
  }
  if (!is_view(grad, flat_grads_, place)) {
    throw Error(ErrorCode::kFailedPrecondition,
                "gradient of '" + place.name +
                    "' was replaced after its engine or ModuleMemory was made "
                    "(zero_grad() of a module or of a torch optimizer followed "
                    "by backward(), backward() with create_graph, or an "
                    "assignment to grad): leave it where it is, and let "
                    "backward() accumulate");
  }
}

inline bool ModuleMemory::is_view(const at::Tensor& tensor,
                                  const at::Tensor& flat,
                                  const Parameter& place) {
  if (tensor.layout() != at::kStrided ||
      tensor.scalar_type() != flat.scalar_type() || !tensor.device().is_cpu() ||
      !tensor.is_contiguous() ||
      static_cast<std::size_t>(tensor.numel()) != place.size) {
    return false;
  }
  const auto* begin = static_cast<const std::byte*>(flat.const_data_ptr());
  return place.size == 0 ||
         tensor.const_data_ptr() == begin + place.offset * flat.element_size();
}

inline at::Tensor ModuleMemory::wrap(const std::shared_ptr<Buffer>& buffer) {
  // The deleter's copy keeps the memory for tensors that outlive this object.
  return ::torch::from_blob(
      buffer->data(), {static_cast<std::int64_t>(buffer->size())},
      [buffer](void*) {}, scalar_type(buffer->dtype()));
}

inline at::ScalarType ModuleMemory::scalar_type(DType dtype) {
  if (dtype == DType::kFloat16) return at::kHalf;
  if (dtype == DType::kBFloat16) return at::kBFloat16;
  return at::kFloat;
}

inline at::Tensor ModuleMemory::view_of(const at::Tensor& flat,
                                        const Parameter& place) {
  const std::vector<std::int64_t> shape(place.shape.begin(), place.shape.end());
  return flat
      .narrow(0, static_cast<std::int64_t>(place.offset),
              static_cast<std::int64_t>(place.size))
      .view(shape);
}

}  // namespace thinwire::torch
