// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <bit>
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
#include "thinwire/optim/optimizer.h"
#include "thinwire/torch/staging.h"

namespace thinwire::torch {

/// The optimizer group of a parameter; groups count from 0 without gaps.
using GroupOf =
    std::function<std::size_t(std::string_view name, const at::Tensor&)>;

/// A parameter and its first name.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// Returns the module's distinct parameters that require a gradient, in the
/// order of their registration.
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

/// Throws Error(kFailedPrecondition) if there is none.
inline void require_any(const std::vector<NamedParameter>& parameters) {
  if (parameters.empty())
    throw Error(ErrorCode::kFailedPrecondition,
                "module: no parameter requires a gradient, so there is nothing "
                "to train");
}

/// Returns the number of parameters that stay fp32. It is 0 unless `dtype` is
/// 16-bit and some parameters have it.
inline std::size_t num_wide(const std::vector<NamedParameter>& parameters,
                            at::ScalarType dtype) {
  const auto count = [&](at::ScalarType type) {
    return static_cast<std::size_t>(
        std::count_if(parameters.begin(), parameters.end(),
                      [type](const NamedParameter& parameter) {
                        return parameter.tensor.scalar_type() == type;
                      }));
  };
  const bool is_mixed = dtype != at::kFloat && count(dtype) > 0;
  return is_mixed ? count(at::kFloat) : 0;
}

/// Returns the parameters in the order of flat memory, in which those that stay
/// fp32 are last.
inline std::vector<NamedParameter> in_memory_order(
    std::vector<NamedParameter> parameters, at::ScalarType dtype) {
  if (num_wide(parameters, dtype) > 0)
    std::stable_partition(parameters.begin(), parameters.end(),
                          [](const NamedParameter& parameter) {
                            return parameter.tensor.scalar_type() != at::kFloat;
                          });
  return parameters;
}

/// Place of a module's gradients.
enum class Gradients {
  kInPlace,   ///< In a flat array, from one step to the next.
  kReleased,  ///< A hook takes each gradient and undefines it at once.
  /// Only on the device, like the parameters, because another rank has the
  /// arrays.
  kOnDevice,
};

/// Moves the trainable parameters of a module, and their gradients, into two
/// flat arrays. Each tensor becomes a view of its place there, so backward()
/// writes where Optimizer::step() reads, without a copy.
///   torch::ModuleMemory memory(*model);
///   optim::OnebitAdam optimizer(comm, memory.layout(),
///                               {.freeze = {.step = 100}});
///   ...
///   memory.zero_grad();
///   loss.backward();
///   memory.check();
///   optimizer.step(memory.params(), memory.grads());
/// Parameters on another device stay there, and the arrays on the host have
/// copies: before the step call fetch_gradients(), and after it
/// send_parameters(). On the CPU both do nothing. A step that gets
/// final_range() copies parameters while it updates others.
///
/// Local. Parameters are dense, on one device, and all float32, all float16 or
/// all bfloat16, unless they are converted; their gradients have the same type.
/// Some may stay float32 while others are 16-bit: they come last in the layout,
/// in separate arrays that are joined to the others (View::joined). A parameter
/// that a backward does not use has gradient zero. Parameters that do not
/// require a gradient stay in their memory. A parameter registered under two
/// names counts once, under the first. The arrays exist as long as this object
/// or any of the tensors. A later ModuleMemory of the same module takes over
/// the tensors, and this one must not be used any more.
class ModuleMemory {
 public:
  /// Keeps values and, with kInPlace, gradients that already exist. With
  /// `dtype` it converts both. With `keeps_float32`, float32 ones stay if some
  /// parameter has a 16-bit `dtype`. Throws Error(kInvalidArgument) naming a
  /// parameter that is on another device than others, not dense, or of another
  /// 16-bit type than others and not converted. Throws
  /// Error(kFailedPrecondition) if there is none to train. Errors change
  /// nothing. From now on a backward that gives a parameter a sparse gradient
  /// throws Error(kInvalidArgument). With kReleased there are no gradients, and
  /// existing ones are dropped.
  explicit ModuleMemory(const ::torch::nn::Module& module,
                        const GroupOf& group_of = {},
                        std::optional<DType> dtype = std::nullopt,
                        Gradients gradients = Gradients::kInPlace,
                        bool keeps_float32 = true)
      : gradients_(gradients) {
    std::vector<NamedParameter> parameters = trainable_parameters(module);
    std::optional<at::ScalarType> narrow;
    for (const NamedParameter& parameter : parameters) {
      require_supported(parameter, dtype ? std::nullopt : narrow,
                        parameters.front().tensor.device());
      if (!narrow && parameter.tensor.scalar_type() != at::kFloat)
        narrow = parameter.tensor.scalar_type();
    }
    if (!dtype)
      dtype = !narrow                ? DType::kFloat32
              : *narrow == at::kHalf ? DType::kFloat16
                                     : DType::kBFloat16;
    if (keeps_float32) {
      num_wide_ = torch::num_wide(parameters, scalar_type(*dtype));
      parameters = in_memory_order(std::move(parameters), scalar_type(*dtype));
    }
    std::vector<ParameterSpec> specs;
    for (const auto& [name, tensor] : parameters) {
      const auto sizes = tensor.sizes();
      specs.push_back({.name = name,
                       .shape = {sizes.begin(), sizes.end()},
                       .group = group_of ? group_of(name, tensor) : 0});
      tensors_.push_back(tensor);
    }
    require_any(parameters);
    layout_ = ParameterLayout::of(std::move(specs));
    if (!tensors_.front().device().is_cpu()) {
      staging_ = std::make_shared<Staging>(tensors_.front().device());
      if (gradients_ != Gradients::kOnDevice) {
        sent_.resize(tensors_.size());
        for (const Parameter& place : layout_.parameters())
          missing_.emplace_back(place.size);
      }
    }
    arrays_[1].begin =
        num_wide_ == 0
            ? layout_.size()
            : layout_.parameters()[tensors_.size() - num_wide_].offset;
    const std::size_t wide = layout_.size() - arrays_[1].begin;
    const bool has_arrays = gradients_ != Gradients::kOnDevice;
    make_arrays(arrays_[0], has_arrays ? arrays_[1].begin : 0, *dtype);
    make_arrays(arrays_[1], has_arrays ? wide : 0, DType::kFloat32);
    for (std::size_t i = 0; i < tensors_.size(); ++i) re_home(i, tensors_[i]);
  }

  [[nodiscard]] const ParameterLayout& layout() const noexcept {
    return layout_;
  }
  /// Returns the parameters in layout order. On the CPU they are views of the
  /// flat arrays.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const noexcept {
    return tensors_;
  }
  /// Return the flat arrays of layout().size() elements; grads() is empty with
  /// kReleased, and both are with kOnDevice.
  [[nodiscard]] View params() {
    return View::joined(view(arrays_[0].params), view(arrays_[1].params));
  }
  [[nodiscard]] View grads() {
    return View::joined(view(arrays_[0].grads), view(arrays_[1].grads));
  }
  /// Returns the number of parameters that are float32 while others are 16-bit.
  [[nodiscard]] std::size_t num_wide() const noexcept { return num_wide_; }

  /// Sets every gradient to 0 and keeps it in place, unlike module.zero_grad().
  /// On a device releases it.
  void zero_grad() {
    if (!staging_)
      for (Arrays& arrays : arrays_) arrays.grads.zero_();
    else
      for (const at::Tensor& tensor : tensors_) tensor.mutable_grad().reset();
  }

  /// Copies the device's gradients to grads(), where missing ones are 0, and
  /// waits for them. Copies parameters that the program has written to
  /// params().
  void fetch_gradients() {
    if (!staging_) return;
    const ::torch::NoGradGuard no_grad;
    take_in_written();
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (const at::Tensor& grad = tensors_[i].grad(); grad.defined())
        static_cast<void>(staging_->to_host(grad.detach(), gradient(i)));
    staging_->wait();
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (!tensors_[i].grad().defined()) gradient(i).zero_();
  }
  /// Copies params() to the device, except ranges that final_range() has copied
  /// since the last call. Operations that are queued later see the new values.
  void send_parameters() {
    if (sent_.empty()) return;
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (missing_[i]) numbers.push_back(i);
      missing_[i] = layout_.parameters()[i].size;
    }
    send(numbers);
  }
  /// Returns a function for StepInput::final_range that copies parameters to
  /// the device while a step updates others; empty on the CPU. This object must
  /// not move during the step.
  [[nodiscard]] optim::FinalRange final_range() {
    if (!staging_) return {};
    return [this](Range range) { send_final(range); };
  }
  /// Copies values that the program has written into parameters on a device
  /// since send_parameters() to params(). Does not notice writes through
  /// Tensor::data().
  void take_in_written() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      if (sent_[i] == sent(tensors_[i])) continue;
      value(i).copy_(tensors_[i].detach());
      sent_[i] = sent(tensors_[i]);
    }
  }
  /// Waits until params() and grads() may be written.
  void wait() {
    if (staging_) staging_->wait();
  }
  /// Returns the object that copies from and to the device; null on the CPU.
  [[nodiscard]] Staging* staging() noexcept { return staging_.get(); }
  /// Returns the place of a gradient in grads().
  [[nodiscard]] at::Tensor gradient(std::size_t number) const {
    const Arrays& arrays = arrays_of(number);
    return view_of(arrays.grads, layout_.parameters()[number], arrays.begin);
  }

  /// Throws Error(kFailedPrecondition) naming the first parameter or gradient
  /// that is no longer a view of the flat arrays, and the likely reason. Cheap:
  /// call it before every step.
  void check() const {
    check_parameters();
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      check_gradient(i, tensors_[i]);
  }
  /// Checks only the parameters.
  void check_parameters() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Parameter& place = layout_.parameters()[i];
      const Arrays& arrays = arrays_of(i);
      const at::Tensor& tensor = tensors_[i];
      const bool is_here =
          staging_ ? tensor.device() == staging_->device() &&
                         tensor.scalar_type() == arrays.params.scalar_type() &&
                         static_cast<std::size_t>(tensor.numel()) == place.size
                   : is_view(tensor, arrays.params, place, arrays.begin);
      if (!is_here) {
        throw Error(
            ErrorCode::kFailedPrecondition,
            "parameter '" + place.name +
                "' was replaced after its engine or ModuleMemory was "
                "made (torch::load, module.to() and set_data() do that): "
                "load and convert the module first, then make a new one");
      }
    }
  }

  static at::ScalarType scalar_type(DType dtype) {
    if (dtype == DType::kFloat16) return at::kHalf;
    if (dtype == DType::kBFloat16) return at::kBFloat16;
    return at::kFloat;
  }
  /// Returns a contiguous tensor on the host, of fp32 or 16 bits, as a view.
  static View view(const at::Tensor& flat) {
    const at::ScalarType type = flat.scalar_type();
    const DType dtype = type == at::kHalf       ? DType::kFloat16
                        : type == at::kBFloat16 ? DType::kBFloat16
                                                : DType::kFloat32;
    return View(flat.mutable_data_ptr(), static_cast<std::size_t>(flat.numel()),
                dtype);
  }

 private:
  // Arrays of parameters of one type, whose elements begin there in the layout.
  struct Arrays {
    std::size_t begin = 0;
    at::Tensor params{};
    at::Tensor grads{};
    std::vector<MemoryNote> pinned{};  // of arrays that torch has made
  };
  // A parameter on a device when it was sent: address and version.
  using Sent = std::pair<const void*, std::int64_t>;

  // `other` is a 16-bit dtype that another parameter has and keeps.
  static void require_supported(const NamedParameter& parameter,
                                std::optional<at::ScalarType> other,
                                at::Device device) {
    const auto& [name, tensor] = parameter;
    const auto refuse = [&name = name](const char* what,
                                       const std::string& value) {
      throw Error(ErrorCode::kInvalidArgument,
                  "parameter '" + name + "': " + what + ", got " + value);
    };
    if (tensor.is_meta()) refuse("must be on the CPU or a device", "meta");
    if (tensor.device() != device) {
      refuse(("must be on one device with all others, " + device.str()).c_str(),
             tensor.device().str());
    }
    const at::ScalarType type = tensor.scalar_type();
    if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) {
      refuse("must be Float, Half or BFloat16", c10::toString(type));
    }
    if (other && type != *other && type != at::kFloat) {
      refuse("must be of the same type as all others, or Float",
             c10::toString(type));
    }
    if (tensor.layout() != at::kStrided) {
      refuse("must be dense", "a sparse tensor");
    }
    if (tensor.grad().defined() && tensor.grad().layout() != at::kStrided) {
      refuse("its gradient must be dense",
             "a sparse one (make the layer with sparse(false))");
    }
  }
  void make_arrays(Arrays& arrays, std::size_t size, DType dtype) const {
    arrays.params = make_array(arrays, size, dtype, MemoryKind::kParameters);
    arrays.grads =
        make_array(arrays, gradients_ == Gradients::kInPlace ? size : 0, dtype,
                   MemoryKind::kGradients);
  }
  [[nodiscard]] at::Tensor make_array(Arrays& arrays, std::size_t size,
                                      DType dtype, MemoryKind kind) const {
    if (staging_) {
      // torch rounds pinned memory up to a power of two.
      arrays.pinned.emplace_back(
          kind, size == 0 ? 0 : std::bit_ceil(size * size_of(dtype)));
      return staging_->zeros({static_cast<std::int64_t>(size)},
                             scalar_type(dtype));
    }
    const MemoryScope scope(kind);
    return wrap(std::make_shared<Buffer>(size, dtype));
  }
  // Returns the arrays of the parameter with this number.
  [[nodiscard]] const Arrays& arrays_of(std::size_t number) const {
    return arrays_[number < tensors_.size() - num_wide_ ? 0 : 1];
  }
  void re_home(std::size_t number, at::Tensor& tensor) const {
    const ::torch::NoGradGuard no_grad;
    const Parameter& place = layout_.parameters()[number];
    const Arrays& arrays = arrays_of(number);
    const at::ScalarType type = arrays.params.scalar_type();
    at::Tensor param;
    at::Tensor grad;
    if (gradients_ == Gradients::kInPlace && staging_) {
      if (tensor.grad().defined()) grad = tensor.grad().to(type);
    } else if (gradients_ == Gradients::kInPlace) {
      grad = view_of(arrays.grads, place, arrays.begin);
      if (tensor.grad().defined()) grad.copy_(tensor.grad());
    }
    if (gradients_ != Gradients::kOnDevice) {
      param = value(number);
      param.copy_(tensor);
    }
    tensor.mutable_grad().reset();
    if (!staging_)
      tensor.set_data(param);
    else if (tensor.scalar_type() != type)
      tensor.set_data(tensor.detach().to(type));
    tensor.mutable_grad() = grad;
    // Autograd would silently add a sparse gradient to a dense one.
    const unsigned hook =
        tensor.register_hook([name = place.name](const at::Tensor& gradient) {
          if (gradient.layout() == at::kStrided) return;
          throw Error(
              ErrorCode::kInvalidArgument,
              "parameter '" + name +
                  "': its gradient must be dense, got a sparse one (make "
                  "the layer with sparse(false))");
        });
    hooks_->all.emplace_back(tensor, hook);
  }
  void check_gradient(std::size_t number, const at::Tensor& tensor) const {
    const Parameter& place = layout_.parameters()[number];
    const Arrays& arrays = arrays_of(number);
    const at::Tensor& grad = tensor.grad();
    if (gradients_ != Gradients::kReleased && staging_) return;
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
    if (!is_view(grad, arrays.grads, place, arrays.begin)) {
      throw Error(
          ErrorCode::kFailedPrecondition,
          "gradient of '" + place.name +
              "' was replaced after its engine or ModuleMemory was made "
              "(zero_grad() of a module or of a torch optimizer followed "
              "by backward(), backward() with create_graph, or an "
              "assignment to grad): leave it where it is, and let "
              "backward() accumulate");
    }
  }
  static bool is_view(const at::Tensor& tensor, const at::Tensor& flat,
                      const Parameter& place, std::size_t begin) {
    if (tensor.layout() != at::kStrided ||
        tensor.scalar_type() != flat.scalar_type() ||
        !tensor.device().is_cpu() || !tensor.is_contiguous() ||
        static_cast<std::size_t>(tensor.numel()) != place.size) {
      return false;
    }
    const auto* data = static_cast<const std::byte*>(flat.const_data_ptr());
    return place.size == 0 ||
           tensor.const_data_ptr() ==
               data + (place.offset - begin) * flat.element_size();
  }
  [[nodiscard]] at::Tensor value(std::size_t number) const {
    const Arrays& arrays = arrays_of(number);
    return view_of(arrays.params, layout_.parameters()[number], arrays.begin);
  }
  void send_final(Range range) {
    std::vector<std::size_t> complete;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Parameter& place = layout_.parameters()[i];
      const std::size_t begin = std::max(place.offset, range.offset);
      const std::size_t end = std::min(place.offset + place.size, range.end());
      if (begin >= end) continue;
      *missing_[i] -= end - begin;
      if (*missing_[i] > 0) continue;
      missing_[i].reset();
      complete.push_back(i);
    }
    send(complete);
  }
  void send(const std::vector<std::size_t>& numbers) {
    if (numbers.empty()) return;
    const ::torch::NoGradGuard no_grad;
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> tensors;
    for (const std::size_t i : numbers) {
      values.push_back(value(i));
      tensors.push_back(tensors_[i]);
    }
    staging_->to_device(values, tensors);
    for (const std::size_t i : numbers) sent_[i] = sent(tensors_[i]);
  }
  static Sent sent(const at::Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor._version()};
  }
  static at::Tensor wrap(const std::shared_ptr<Buffer>& buffer) {
    // The deleter's copy keeps the memory for tensors that outlive this object.
    return ::torch::from_blob(
        buffer->data(), {static_cast<std::int64_t>(buffer->size())},
        [buffer](void*) {}, scalar_type(buffer->dtype()));
  }
  static at::Tensor view_of(const at::Tensor& flat, const Parameter& place,
                            std::size_t begin) {
    const std::vector<std::int64_t> shape(place.shape.begin(),
                                          place.shape.end());
    return flat
        .narrow(0, static_cast<std::int64_t>(place.offset - begin),
                static_cast<std::int64_t>(place.size))
        .view(shape);
  }

  // Hooks on the tensors, which may outlive this object.
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
  std::vector<at::Tensor> tensors_;  // in layout order
  std::size_t num_wide_ = 0;
  std::array<Arrays, 2> arrays_;
  std::shared_ptr<Staging> staging_;  // null on the CPU
  std::vector<Sent> sent_;
  // Number of elements of each parameter that this step has not finished; empty
  // if the parameter was sent.
  std::vector<std::optional<std::size_t>> missing_;
  std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
};

}  // namespace thinwire::torch
