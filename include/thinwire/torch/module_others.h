// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/log.h"
#include "thinwire/core/view.h"
#include "thinwire/engine/engine.h"

namespace thinwire::torch {

/// Tensors of a module's checkpoint in addition to its trainable parameters,
/// and further names of shared tensors. The tensors are frozen parameters and
/// buffers that are dense and of a type that files support. Each is saved under
/// its first name in the order of registration, parameters before buffers. At
/// construction, a line is logged for each unsupported tensor.
class ModuleOthers {
 public:
  explicit ModuleOthers(const ::torch::nn::Module& module) : module_(module) {
    static_cast<void>(describe());
    copies_.clear();
    logs_ = false;
  }

  /// Returns views of the current tensors. If a tensor is not contiguous or not
  /// on the CPU, the view is of a copy that lives until the next call.
  [[nodiscard]] engine::Engine::Others describe() {
    engine::Engine::Others others;
    names_.clear();
    copies_.clear();
    for (const auto& item : module_.named_parameters())
      add(item.key(), item.value(), item.value().requires_grad(), others);
    for (const auto& item : module_.named_buffers())
      add(item.key(), item.value(), false, others);
    return others;
  }
  /// Writes describe()'s copies back to their tensors.
  void write_back() {
    const ::torch::NoGradGuard no_grad;
    for (const auto& [tensor, copy] : copies_) tensor.detach().copy_(copy);
    copies_.clear();
  }
  /// Returns whether a checkpoint has this tensor.
  [[nodiscard]] static bool is_saved(const at::Tensor& tensor) {
    return tensor.defined() && type_of(tensor).has_value();
  }

 private:
  struct Type {
    DType dtype = DType::kFloat32;
    std::string_view other{};
  };
  // Returns nothing if the tensor is not saved.
  static std::optional<Type> type_of(const at::Tensor& tensor) {
    if (tensor.is_meta() || tensor.layout() != at::kStrided)
      return std::nullopt;
    switch (tensor.scalar_type()) {
      case at::kFloat:
        return Type{DType::kFloat32};
      case at::kHalf:
        return Type{DType::kFloat16};
      case at::kBFloat16:
        return Type{DType::kBFloat16};
      case at::kDouble:
        return Type{DType::kFloat64};
      case at::kInt:
        return Type{DType::kInt32};
      case at::kLong:
        return Type{DType::kInt64};
      case at::kByte:
        return Type{DType::kUInt8};
      case at::kBool:
        return Type{DType::kUInt8, "BOOL"};
      case at::kChar:
        return Type{DType::kUInt8, "I8"};
      case at::kFloat8_e4m3fn:
        return Type{DType::kUInt8, "F8_E4M3"};
      case at::kFloat8_e5m2:
        return Type{DType::kUInt8, "F8_E5M2"};
      case at::kShort:
        return Type{DType::kFloat16, "I16"};
      case at::kUInt16:
        return Type{DType::kFloat16, "U16"};
      case at::kUInt32:
        return Type{DType::kInt32, "U32"};
      case at::kUInt64:
        return Type{DType::kInt64, "U64"};
      case at::kComplexFloat:
        return Type{DType::kInt64, "C64"};
      default:
        return std::nullopt;
    }
  }
  void add(const std::string& name, const at::Tensor& tensor, bool is_trained,
           engine::Engine::Others& others) {
    if (!tensor.defined()) return;
    const auto [known, is_new] =
        names_.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) {
      if (!known->second.empty())
        others.aliases.emplace_back(name, known->second);
      return;
    }
    if (is_trained) return;  // the engine has it
    const std::optional<Type> type = type_of(tensor);
    if (!type) {
      known->second.clear();  // further names are not used
      if (logs_)
        log(LogLevel::kWarning, "'" + name +
                                    "' is no dense tensor of a type that "
                                    "checkpoints know: not saved");
      return;
    }
    at::Tensor values = tensor.detach();
    if (!values.is_contiguous() || !values.device().is_cpu()) {
      values = values.to(at::kCPU).clone(at::MemoryFormat::Contiguous);
      copies_.emplace_back(tensor, values);
    }
    std::vector<std::size_t> shape;
    for (const auto size : values.sizes())
      shape.push_back(static_cast<std::size_t>(size));
    others.tensors.push_back(
        {.name = name,
         .shape = std::move(shape),
         .values = View(values.mutable_data_ptr(),
                        static_cast<std::size_t>(values.numel()), type->dtype),
         .type = type->other});
  }

  const ::torch::nn::Module& module_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // tensor, its copy
  bool logs_ = true;
};

}  // namespace thinwire::torch
