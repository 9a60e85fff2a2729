// SPDX-License-Identifier: Apache-2.0
// Operators: on the CPU, and their results late.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/record_stream_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "guard.h"

namespace fence {
/// The same elements where the CPU can read them. Of the device's it keeps
/// nothing alive, as a queue of a real device does not; of Python nothing, or a
/// queue that runs without the GIL would wait for it.
Tensor seen(const Tensor& t) {
  if (t.device().type() != kFence) return t.detach();
  return at::from_blob(on_host(t.data_ptr()), t.sizes(), t.strides(),
                       t.options().device(at::kCPU));
}
bool is_on(const Tensor& t) { return t.device().type() == kFence; }
void touch(Queue& queue, const Tensor& t, bool writes) {
  if (!is_on(t) && !is_pinned(t.data_ptr())) return;
  const char* begin = static_cast<const char*>(t.data_ptr());
  const size_t size =
      at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
  const std::string wrong =
      touch(queue, t.storage().data(), begin, begin + size, writes);
  TORCH_CHECK(wrong.empty(), wrong);
}
thread_local bool copies_results = false;
/// Within it copies are those of an operator: nobody but these files waits.
struct OnHost {
  bool before = std::exchange(copies_results, true);
  OnHost() = default;
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
  ~OnHost() { copies_results = before; }
};

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const Lock lock(mutex);
  const at::AutoDispatchBelowADInplaceOrView below;
  if (from.numel() == 0) return to;
  Queue& queue =
      current(is_on(from) ? from.device().index() : to.device().index());
  Queue& target =
      current(is_on(to) ? to.device().index() : from.device().index());
  wait(queue, event_of(target));  // Between devices, as CUDA does it.
  const Tensor& other = is_on(from) ? to : from;  // The one on the host.
  const bool is_local = is_on(from) && is_on(to);
  const bool is_async = is_local || (copies_results && is_on(to)) ||
                        (non_blocking && is_pinned(other.data_ptr()) &&
                         other.is_contiguous() && from.dtype() == to.dtype());
  if (!is_local && non_blocking) {
    ++counts[is_async ? kAsyncCopies : kUnpinnedAsync];
  }
  require_no_fault();
  touch(queue, from, false);
  touch(queue, to, true);
  if (is_async && !is_on(to) && to.is_floating_point()) to.fill_(NAN);
  const auto bytes_of = [](const Tensor& t) {
    return std::hash<std::string_view>()(
        {static_cast<const char*>(t.const_data_ptr()), t.nbytes()});
  };
  const bool is_read_late = is_async && !is_on(from) && from.is_contiguous() &&
                            is_pinned(from.const_data_ptr());
  const size_t bytes = is_read_late ? bytes_of(from) : 0;
  put(queue, [=, from = seen(from), to = seen(to)] {
    const at::AutoDispatchBelowADInplaceOrView inner;
    if (is_read_late && bytes_of(from) != bytes) {
      fault = "fence: the host has written memory that a copy had yet to read";
    }
    to.copy_(from);
  });
  wait(target, event_of(queue));
  if (!is_async) {
    run_all(queue);
    if (!copies_results) {  // Else nobody but this file has waited.
      ++counts[kHostWaits];
      reach(event_of(queue));
    }
  }
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

/// Random operators draw from the device's generator.
struct DeviceNumbers {
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  at::Generator device;
  Tensor before = cpu.get_state();
  explicit DeviceNumbers(at::Generator from) : device(std::move(from)) {
    cpu.set_state(device.get_state());
  }
  ~DeviceNumbers() {
    device.set_state(cpu.get_state());
    cpu.set_state(before);
  }
};

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Lock lock(mutex);
  ++counts[kOperators];
  const size_t first = stack->size() - op.schema().arguments().size();
  c10::OptionalDeviceGuard guard;  // As code generated for CUDA has it.
  for (size_t i = first; i < stack->size() && !guard.current_device(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (value.isDevice()) guard.reset_device(value.toDevice());
    if (value.isTensor() && value.toTensor().defined() &&
        is_on(value.toTensor())) {
      guard.reset_device(value.toTensor().device());
    }
  }
  std::optional<DeviceNumbers> numbers;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    at::Generator generator =
        at::globalContext().defaultGenerator(Device(kFence, current_device));
    for (size_t i = first; i < stack->size(); ++i) {
      if (!(*stack)[i].isGenerator()) continue;
      generator = (*stack)[i].toGenerator();
      (*stack)[i] = c10::IValue();  // The CPU's own, which holds its state.
    }
    numbers.emplace(generator);
  }
  // Arguments in the order of the stream; results when somebody waits.
  run_all(current(current_device));
  const OnHost results;
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(Device(kFence)));
  return at::detail::empty_generic(
      size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device,
                     std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(Device(kFence)));
  return at::detail::empty_strided_generic(
      size, stride, &device_memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}
at::Scalar item(const Tensor& t) { return at::_local_scalar_dense(t.cpu()); }
void record_stream(Tensor& t, c10::Stream s) {
  Guard().recordDataPtrOnStream(t.storage().data_ptr(), s);
}
Tensor convolution(const Tensor& x, const Tensor& w,
                   const std::optional<Tensor>& b, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef out, int64_t groups) {
  const OnHost copies;
  const auto bias = b && b->defined() ? std::optional(b->cpu()) : std::nullopt;
  return at::convolution(x.cpu(), w.cpu(), bias, stride, padding, dilation,
                         transposed, out, groups)
      .to(x.device());
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& g, const Tensor& x, const Tensor& w, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef out, int64_t groups, std::array<bool, 3> mask) {
  const OnHost copies;
  const int64_t bias[] = {transposed ? w.size(1) * groups : w.size(0)};
  auto [gx, gw, gb] = at::convolution_backward(
      g.cpu(), x.cpu(), w.cpu(), at::IntArrayRef(bias), stride, padding,
      dilation, transposed, out, groups, mask);
  const auto back = [&](const Tensor& t) {
    return t.defined() ? t.to(x.device()) : t;
  };
  return {back(gx), back(gw), back(gb)};
}

/// As CUDA and torch_npu: without it Module.to() makes new parameters, which
/// unties tied ones and leaves optimizers with the old.
bool is_compatible(const Tensor& self, const Tensor& from) {
  return self.layout() == at::kStrided && from.layout() == at::kStrided;
}

/// native_batch_norm's schema does not say that it writes the running values.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x,
                                              const std::optional<Tensor>& w,
                                              const std::optional<Tensor>& b,
                                              const std::optional<Tensor>& mean,
                                              const std::optional<Tensor>& var,
                                              bool training, double momentum,
                                              double eps) {
  if (!mean || !mean->defined()) {
    return at::_native_batch_norm_legit(x, w, b, training, momentum, eps);
  }
  Tensor m = *mean, v = *var;
  return at::_native_batch_norm_legit(x, w, b, m, v, training, momentum, eps);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("record_stream", record_stream);
  // Has a composite kernel too, of other rounding, which would go before.
  m.impl("native_layer_norm",
         torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  m.impl("_has_compatible_shallow_copy_type", is_compatible);
  m.impl("native_batch_norm", batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset",
         TORCH_FN(at::native::set_storage_cpu_));
}
namespace autocast {
using namespace at::autocast;
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}
}  // namespace autocast

TORCH_LIBRARY(fence, m) {
  m.def("counts() -> int[]", [] {
    const Lock lock(mutex);
    return std::vector<int64_t>(counts, counts + kCounts);
  });
  m.def("device_count() -> int", [] { return int64_t{device_count()}; });
  m.def("rng_state(int device) -> Tensor", [](int64_t d) {
    return at::globalContext()
        .defaultGenerator(Device(kFence, static_cast<DeviceIndex>(d)))
        .get_state();
  });
  m.def("set_rng_state(int device, Tensor state) -> ()",
        [](int64_t d, const Tensor& state) {
          at::Generator g = at::globalContext().defaultGenerator(
              Device(kFence, static_cast<DeviceIndex>(d)));
          g.set_state(state);
        });
}

}  // namespace fence
