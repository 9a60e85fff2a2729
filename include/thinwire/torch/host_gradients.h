// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "thinwire/engine/engine.h"
#include "thinwire/torch/gradient_copies.h"
#include "thinwire/torch/host_group.h"
#include "thinwire/torch/module_memory.h"

namespace thinwire::torch {

/// Returns buckets of parameter indices, the last parameters first, because
/// backward computes their gradients first. The parameters of a bucket have the
/// same dtype. A bucket has at most `bytes` in fp32, unless it is one
/// parameter.
inline std::vector<std::vector<std::size_t>> host_buckets(
    const std::vector<at::Tensor>& parameters, std::size_t bytes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::size_t size = 0;
  for (std::size_t k = parameters.size(); k-- > 0;) {
    const at::Tensor& tensor = parameters[k];
    const std::size_t own = static_cast<std::size_t>(tensor.numel()) * 4;
    const bool is_alike =
        !buckets.empty() &&
        parameters[buckets.back()[0]].scalar_type() == tensor.scalar_type();
    if (!is_alike || size + own > bytes) {
      buckets.emplace_back();
      size = 0;
    }
    buckets.back().push_back(k);
    size += own;
  }
  return buckets;
}

/// Sums gradients of a host in the device's process group, a bucket at a time,
/// while backward computes others. The leader then copies the sums to the host.
/// Buckets and their order are the same on all ranks, regardless of the order
/// of gradients. A missing gradient counts as zero. In a window of accumulation
/// gradients add up on the device first, in fp32 if the configuration
/// accumulates in fp32.
class HostGradients {
 public:
  /// `core` is the leader's engine; null on followers. `buckets` are those of
  /// host_buckets(), and outlive this object.
  HostGradients(ModuleMemory& memory, HostGroup& hosts, engine::Engine* core,
                const config::Config& config,
                const std::vector<std::vector<std::size_t>>& buckets)
      : memory_(memory),
        hosts_(hosts),
        in_fp32_(config.accumulation_dtype == DType::kFloat32),
        buckets_(buckets),
        bucket_of_(memory.tensors().size()),
        sums_(memory.staging()->new_stream()),
        added_(memory.tensors().size()),
        found_(memory.tensors().size()),
        kept_(memory),
        taken_(memory) {
    if (core != nullptr) copies_.emplace(memory, *core);
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      for (const std::size_t k : buckets_[b]) bucket_of_[k] = b;
  }

  /// Throws Error(kFailedPrecondition) naming a gradient that was removed or
  /// replaced in a window of accumulation.
  void check() {
    if (!in_window_) return memory_.zero_grad();
    kept_.check();
  }
  /// Returns whether gradients of this backward have gone to the leader.
  [[nodiscard]] bool has_sent() const noexcept { return next_ > 0; }

  /// Begins a backward.
  void begin(bool is_boundary) {
    is_boundary_ = is_boundary;
    taken_.begin();
    next_ = 0;
    missing_.clear();
    for (const auto& bucket : buckets_) missing_.push_back(bucket.size());
  }

  /// Takes the gradient of a parameter, which is complete for this backward.
  void take(std::size_t index, at::Tensor parameter) {
    taken_.take(index);
    const at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) return;
    if (!is_boundary_) return add_up(index, parameter);
    parameter.mutable_grad().reset();
    collect(index, gradient.detach());
    while (next_ < buckets_.size() && missing_[next_] == 0) send();
    if (copies_) copies_->hand_over(false);
  }

  /// Ends the backward. After a window's last one the leader waits for the
  /// sums. Collective in the host at a boundary.
  void finish() {
    in_window_ = !is_boundary_;
    if (!is_boundary_) return kept_.remember();
    for (std::size_t k = 0; k < found_.size(); ++k) {
      // From earlier backwards of the window: the last one had none.
      const at::Tensor gradient = memory_.tensors()[k].grad();
      if (!gradient.defined()) continue;
      memory_.tensors()[k].mutable_grad().reset();
      collect(k, gradient.detach());
    }
    while (next_ < buckets_.size()) send();
    hosts_.wait_for_sums();
    if (!copies_) return;
    memory_.staging()->wait();
    copies_->hand_over(true);
  }

  /// Ends a backward that has failed, and its window.
  void cancel() {
    if (copies_) copies_->cancel();
    in_window_ = false;
    for (std::size_t k = 0; k < found_.size(); ++k) {
      added_[k].reset();
      found_[k].reset();
      memory_.tensors()[k].mutable_grad().reset();
    }
  }

 private:
  // A tensor, and the event after which it is there.
  struct Made {
    at::Tensor tensor;
    std::optional<c10::Event> event;
  };

  [[nodiscard]] Made made(at::Tensor tensor) const {
    const Staging& staging = *memory_.staging();
    if (!sums_) return {std::move(tensor), std::nullopt};
    return {std::move(tensor), staging.recorded(staging.current())};
  }
  // Returns the tensor for operations of the current stream.
  [[nodiscard]] at::Tensor here(Made& found) const {
    if (found.event) {
      const c10::Stream now = memory_.staging()->current();
      found.event->block(now);
      found.tensor.record_stream(now);
    }
    return found.tensor;
  }

  void add_up(std::size_t index, at::Tensor& parameter) {
    const at::Tensor gradient = parameter.grad();
    if (!in_fp32_ || gradient.scalar_type() == at::kFloat) return;
    parameter.mutable_grad().reset();
    const ::torch::NoGradGuard no_grad;
    at::Tensor total = gradient.detach().to(at::kFloat);
    if (added_[index]) total += here(*added_[index]);
    added_[index] = made(std::move(total));
  }

  void collect(std::size_t index, at::Tensor gradient) {
    found_[index] = made(std::move(gradient));
    --missing_[bucket_of_[index]];
  }

  // Sums the next bucket on the leader.
  void send() {
    const std::vector<std::size_t>& bucket = buckets_[next_++];
    const ::torch::NoGradGuard no_grad;
    const c10::OptionalStreamGuard on(sums_);
    std::vector<at::Tensor> parts;
    for (const std::size_t k : bucket) parts.push_back(part(k));
    at::Tensor flat = at::cat(parts);
    if (flat.numel() == 0) return;
    hosts_.sum(flat);
    if (!copies_) return;
    std::int64_t at = 0;
    for (const std::size_t k : bucket) {
      const at::Tensor& parameter = memory_.tensors()[k];
      if (parameter.numel() == 0) continue;
      copies_->copy(k, flat.narrow(0, at, parameter.numel())
                           .view(parameter.sizes())
                           .to(parameter.scalar_type()));
      at += parameter.numel();
    }
  }

  // Returns the gradient of this rank's window, flat, in the type of sums.
  at::Tensor part(std::size_t k) {
    const at::Tensor& parameter = memory_.tensors()[k];
    const at::ScalarType type = in_fp32_ ? at::kFloat : parameter.scalar_type();
    at::Tensor sum;
    for (std::optional<Made>* const source : {&added_[k], &found_[k]}) {
      if (!*source) continue;
      const at::Tensor value = here(**source).reshape({-1}).to(type);
      sum = sum.defined() ? sum + value : value;
      source->reset();
    }
    if (sum.defined()) return sum;
    return at::zeros({parameter.numel()}, parameter.options().dtype(type));
  }

  ModuleMemory& memory_;
  HostGroup& hosts_;
  bool in_fp32_;
  const std::vector<std::vector<std::size_t>>& buckets_;
  std::vector<std::size_t> bucket_of_;
  std::optional<c10::Stream> sums_;
  std::optional<GradientCopies> copies_{};  // on the leader
  std::vector<std::optional<Made>> added_;  // of earlier backwards, in fp32
  std::vector<std::optional<Made>> found_;  // of this one
  std::vector<std::size_t> missing_{};      // per bucket
  std::size_t next_ = 0;                    // bucket
  bool is_boundary_ = true;
  bool in_window_ = false;
  AddedUp kept_;
  TakenOnce taken_;
};

}  // namespace thinwire::torch
