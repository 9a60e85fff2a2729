// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <cstring>
#include <mutex>
#include <string>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/view.h"

namespace thinwire::torch {

/// Returns the state of LibTorch's default generator on the CPU in bytes, for
/// checkpoint::Extra::own, because every rank draws its own numbers.
///   extra.own.put("random", torch::random_state());
///   ...
///   torch::set_random_state(report.extra.own.array("random"));
/// The generator belongs to the process: ranks that are threads share it.
[[nodiscard]] inline Buffer random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  Buffer bytes(static_cast<std::size_t>(state.numel()), DType::kUInt8);
  std::memcpy(bytes.view().data(), state.const_data_ptr(), bytes.bytes());
  return bytes;
}

/// Restores the result of random_state(). Throws Error(kCorruptCheckpoint), and
/// changes nothing, if it has another type or length.
inline void set_random_state(ConstView state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const at::Tensor own = generator.get_state();
  const auto size = static_cast<std::size_t>(own.numel());
  if (state.dtype() != DType::kUInt8 || state.size() != size)
    throw Error(ErrorCode::kCorruptCheckpoint,
                "the random state must be uint8 of " + std::to_string(size) +
                    " elements, got " + to_string(state.dtype()) + " of " +
                    std::to_string(state.size()));
  std::memcpy(own.mutable_data_ptr(), state.data(), size);
  try {
    generator.set_state(own);
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kCorruptCheckpoint,
                std::string("the random state is none of this LibTorch's: ") +
                    error.what_without_backtrace());
  }
}

}  // namespace thinwire::torch
