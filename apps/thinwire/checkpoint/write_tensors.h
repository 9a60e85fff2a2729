// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/thinwire/checkpoint/opened.h"
#include "checkpoint/format/safetensors.h"

namespace thinwire::apps::checkpoint_tool {

/// A tensor to write, converted piece by piece if the values have another
/// dtype.
struct Tensor {
  std::string name;
  checkpoint::TensorType type{};
  std::vector<std::size_t> shape{};
  Values values{};

  [[nodiscard]] std::uint64_t bytes() const {
    return values.size * size_of(type.dtype);
  }
};

/// Writes a new safetensors file and returns its size.
std::uint64_t write_tensors(const std::string& path,
                            const std::vector<Tensor>& tensors);
/// Writes a new file.
void write_text(const std::string& path, const std::string& text);

}  // namespace thinwire::apps::checkpoint_tool
