// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "thinwire/comm/agreement.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/error.h"
#include "thinwire/core/view.h"

namespace thinwire::torch {

/// Buffers of a module, which are not trained, such as running statistics of a
/// batch norm. If several names share a buffer, the first one counts.
class ModuleBuffers {
 public:
  /// Finds the buffers. Collective. Throws Error(kInvalidArgument) on all ranks
  /// if their buffers differ in name, type or shape. Ignores buffers that are
  /// not dense.
  ModuleBuffers(const ::torch::nn::Module& module, comm::Communicator& comm)
      : comm_(comm) {
    std::unordered_set<const c10::TensorImpl*> seen;
    std::ostringstream all;
    for (const auto& item : module.named_buffers()) {
      const at::Tensor& buffer = item.value();
      if (!buffer.defined() || buffer.is_meta() ||
          buffer.layout() != at::kStrided ||
          !seen.insert(buffer.unsafeGetTensorImpl()).second)
        continue;
      all << item.key() << ' ' << c10::toString(buffer.scalar_type()) << ' '
          << buffer.sizes() << '\n';
      buffers_.push_back(buffer);
    }
    for (const at::Tensor& parameter : module.parameters())
      is_float32_ = is_float32_ && parameter.scalar_type() == at::kFloat;
    comm::require_same(comm, "the module's buffers", all.str());
  }

  /// Converts fp32 buffers to `type`, if all parameters were fp32 when this
  /// object was made. Otherwise the program has chosen the types. Local.
  void convert(at::ScalarType type) {
    if (!is_float32_) return;
    for (at::Tensor& buffer : buffers_)
      if (buffer.scalar_type() == at::kFloat)
        buffer.set_data(buffer.detach().to(type));
  }
  /// Makes the buffers equal on all ranks, except with kAsTheyAre. Collective
  /// if there are any. Integers, flags and complex numbers are rank 0's in any
  /// case; means are formed in float64, in the order of ranks.
  void make_equal(config::Buffers how) {
    if (comm_.size() == 1 || how == config::Buffers::kAsTheyAre) return;
    const ::torch::NoGradGuard no_grad;
    std::vector<at::Tensor> averaged;
    std::vector<at::Tensor> sent;
    for (const at::Tensor& buffer : buffers_) {
      const bool has_mean =
          how == config::Buffers::kAverage && buffer.is_floating_point();
      (has_mean ? averaged : sent).push_back(buffer);
    }
    broadcast(sent);
    average(averaged);
  }

 private:
  // Sends all buffers in one message, because each is small.
  void broadcast(const std::vector<at::Tensor>& buffers) {
    std::vector<std::uint8_t> bytes;
    std::vector<at::Tensor> values;
    for (const at::Tensor& buffer : buffers) {
      values.push_back(
          buffer.detach().to(at::kCPU).clone(at::MemoryFormat::Contiguous));
      const auto* begin =
          static_cast<const std::uint8_t*>(values.back().const_data_ptr());
      bytes.insert(bytes.end(), begin, begin + values.back().nbytes());
    }
    if (bytes.empty()) return;
    comm_.broadcast(View(bytes.data(), bytes.size(), DType::kUInt8), 0);
    std::size_t at = 0;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (values[i].nbytes() == 0) continue;
      std::memcpy(values[i].mutable_data_ptr(), bytes.data() + at,
                  values[i].nbytes());
      at += values[i].nbytes();
      buffers[i].detach().copy_(values[i]);
    }
  }
  void average(const std::vector<at::Tensor>& buffers) {
    std::vector<at::Tensor> values;
    for (const at::Tensor& buffer : buffers)
      values.push_back(buffer.detach().to(at::kCPU, at::kDouble).reshape({-1}));
    if (values.empty()) return;
    const at::Tensor all = at::cat(values);
    if (all.numel() == 0) return;
    comm_.all_reduce(
        View(all.mutable_data_ptr<double>(),
             static_cast<std::size_t>(all.numel()), DType::kFloat64),
        comm::ReduceOp::kMean);
    std::int64_t at = 0;
    for (const at::Tensor& buffer : buffers) {
      buffer.detach().copy_(
          all.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
  }

  comm::Communicator& comm_;
  std::vector<at::Tensor> buffers_;
  bool is_float32_ = true;  // all parameters, trained and frozen
};

}  // namespace thinwire::torch
